// A folder becomes espalierd's only when nobody else uses it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/journal/state_lock.h"
#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

mode_t ModeOf(const std::string& path) {
  struct stat entry = {};
  EXPECT_EQ(stat(path.c_str(), &entry), 0);
  return entry.st_mode & 07777;
}

class StateFolder : public ::testing::Test {
 protected:
  void Make(mode_t mode) {
    ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }
  void ExpectLeftAlone(mode_t mode, const std::string& why) {
    const absl::Status status = MakeStateFolder(path_);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(path_), HasSubstr(why), HasSubstr("of its own")));
    EXPECT_EQ(ModeOf(path_), mode);
  }
  ScratchFolder folder_;
  const std::string path_ = folder_.path("state");
};

TEST_F(StateFolder, IsMadeWithItsParentsForTheOwnerOnly) {
  EXPECT_EQ(MakeStateFolder(folder_.path("a/b")), absl::OkStatus());
  EXPECT_EQ(ModeOf(folder_.path("a/b")), 0700u);
  EXPECT_EQ(MakeStateFolder(folder_.path("a/b")), absl::OkStatus());
}

TEST_F(StateFolder, AnEmptyOneOfTheOwnerIsTakenAndClosed) {
  Make(0755);
  EXPECT_EQ(MakeStateFolder(path_), absl::OkStatus());
  EXPECT_EQ(ModeOf(path_), 0700u);
}

TEST_F(StateFolder, OneOfAnEspalierdIsTakenAndClosed) {
  Make(0755);
  folder_.Write("state/journal.sqlite", "");
  folder_.Write("state/lock", "1");
  EXPECT_EQ(MakeStateFolder(path_), absl::OkStatus());
  EXPECT_EQ(ModeOf(path_), 0700u);
}

TEST_F(StateFolder, OneThatWasEndedBeforeItsJournalIsTaken) {
  Make(0700);
  folder_.Write("state/lock", "1");
  EXPECT_EQ(MakeStateFolder(path_), absl::OkStatus());
}

// As the advice about a damaged journal says.
TEST_F(StateFolder, OneWhoseJournalWasMovedAsideIsTaken) {
  Make(0700);
  for (const char* left : {"lock", "token", "address", "journal.sqlite.reserve"}) {
    folder_.Write(std::string("state/") + left, "");
  }
  ASSERT_EQ(mkdir(folder_.path("state/jobs").c_str(), 0700), 0);
  EXPECT_EQ(MakeStateFolder(path_), absl::OkStatus());
  folder_.Write("state/journal.sqlite.damaged", "");
  EXPECT_EQ(MakeStateFolder(path_), absl::OkStatus());
  folder_.Write("state/old", "");
  EXPECT_EQ(MakeStateFolder(path_), absl::OkStatus());
}

TEST_F(StateFolder, AFolderLikeTmpIsLeftAlone) {
  Make(01777);
  ExpectLeftAlone(01777, "1777");
}

TEST_F(StateFolder, AFolderThatOthersMayWriteIsLeftAloneEvenWithAJournal) {
  Make(0775);
  folder_.Write("state/journal.sqlite", "");
  ExpectLeftAlone(0775, "chmod 700");
}

TEST_F(StateFolder, AFolderOfOtherThingsIsLeftAlone) {
  Make(0755);
  folder_.Write("state/thesis.tex", "");
  ExpectLeftAlone(0755, "thesis.tex");
}

TEST_F(StateFolder, AFileIsNotTakenForOne) {
  folder_.Write("state", "");
  EXPECT_EQ(MakeStateFolder(path_).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace espalier
