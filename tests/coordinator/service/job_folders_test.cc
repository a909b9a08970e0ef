// Jobs write where the cluster file lets them, whatever links and dots they name it by.
#include "coordinator/service/job_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class Writable : public ::testing::Test {
 protected:
  Writable() {
    fs::create_directory(folder_.path("state"));
    fs::create_directory(folder_.path("models"));
    fs::create_directory(folder_.path("private"));
  }
  absl::Status Check(const std::string& directory) {
    v1::JobSpec spec;
    spec.mutable_checkpoint()->set_directory(directory);
    return CheckWritableFolders(spec, {folder_.path("state"), folder_.path("models/")});
  }
  ScratchFolder folder_;
};

TEST_F(Writable, WithinTheStateFolderAndTheAllowedOnes) {
  for (const char* inside : {"state", "state/jobs/a/checkpoints", "models", "models/new/run-1/",
                             "private/../models/x", "models/./x"}) {
    EXPECT_EQ(Check(folder_.path(inside)), absl::OkStatus()) << inside;
  }
  EXPECT_EQ(CheckWritableFolders(v1::JobSpec(), {}), absl::OkStatus()) << "none is named";
}

TEST_F(Writable, OutsideIsRefusedWithWhatIsAllowedAndWhatToDo) {
  for (const char* outside :
       {"private", "private/new", "models/../private", "models-2", "", ".."}) {
    const absl::Status status = Check(folder_.path(outside));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << outside;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("checkpoint.directory is '" + folder_.path(outside)),
                      HasSubstr(folder_.path("state")), HasSubstr("writable_folders")));
  }
}

TEST_F(Writable, LinksAreFollowed) {
  fs::create_directory_symlink(folder_.path("private"), folder_.path("models/link"));
  const absl::Status status = Check(folder_.path("models/link/run"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/private/run)"));
  fs::create_directory_symlink(folder_.path("models"), folder_.path("short"));
  EXPECT_EQ(Check(folder_.path("short/run")), absl::OkStatus());
}

TEST_F(Writable, TheSampleLogIsAFolderThatIsWrittenToo) {
  v1::JobSpec spec;
  spec.mutable_launch()->set_sample_log(folder_.path("private"));
  EXPECT_THAT(CheckWritableFolders(spec, {folder_.path("state")}).ToString(),
              HasSubstr("launch.sample_log is"));
}

TEST_F(Writable, AHandStartedJobWritesAsItsOwnUser) {
  v1::JobSpec spec;
  spec.mutable_checkpoint()->set_directory(folder_.path("private"));
  spec.mutable_launch()->set_mode(v1::LAUNCH_MODE_EXTERNAL);
  EXPECT_EQ(CheckWritableFolders(spec, {folder_.path("state")}), absl::OkStatus());
}

}  // namespace
}  // namespace espalier
