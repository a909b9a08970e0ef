// Jobs write where the cluster file lets them, whatever links and dots they name it by, and read
// data that is there.
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

class Data : public ::testing::Test {
 protected:
  absl::Status Check(const std::map<std::string, bool>& is_here,
                     const std::vector<std::string>& nodes = {}) {
    v1::JobSpec spec;
    spec.mutable_data()->set_path(folder_.path("data"));
    spec.mutable_parallel()->set_min_nodes(1);
    for (const std::string& node : nodes) spec.mutable_parallel()->add_nodes(node);
    return CheckDataFolder(spec, is_here);
  }
  ScratchFolder folder_;
};

TEST_F(Data, MissingOnTheOnlyMachineItIsNamedWithWhatToDo) {
  const absl::Status status = Check({{"here", true}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("data.path is '" + folder_.path("data") + "'"),
                    HasSubstr("No such file"), HasSubstr("espalier data prepare")));
}

TEST_F(Data, PreparedItIsAccepted) {
  fs::create_directory(folder_.path("data"));
  EXPECT_FALSE(Check({{"here", true}}).ok()) << "an empty folder is no prepared data";
  folder_.Write("data/manifest.json", "{}");
  EXPECT_EQ(Check({{"here", true}}), absl::OkStatus());
}

TEST_F(Data, WhatTheNodesOfOtherMachinesHaveIsNotKnownHere) {
  EXPECT_EQ(Check({{"far", false}}), absl::OkStatus());
  EXPECT_EQ(Check({{"far", false}, {"here", true}}), absl::OkStatus()) << "it may run on far";
  EXPECT_FALSE(Check({{"far", false}, {"here", true}}, {"here"}).ok());
  EXPECT_EQ(Check({{"far", false}, {"here", true}}, {"far"}), absl::OkStatus());
}

}  // namespace
}  // namespace espalier
