// Versions as Open MPI 4 and 5, and espalier-worker, say them.
#include "coordinator/launcher/versions.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/scratch_folder.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {
namespace {

TEST(VersionsIn, OpenMpi4And5AreReadAlike) {
  EXPECT_EQ(OpenMpiVersionIn("mpirun (Open MPI) 4.1.4\n\nReport bugs to ...\n"), "4.1.4");
  EXPECT_EQ(OpenMpiVersionIn("mpirun (Open MPI) 5.0.7\n\nReport bugs to ...\n"), "5.0.7");
  EXPECT_EQ(OpenMpiVersionIn("mpirun (Open MPI) 5.0.0rc12"), "5.0.0rc12");
}

TEST(VersionsIn, OtherProgramsHaveNone) {
  EXPECT_EQ(OpenMpiVersionIn("HYDRA build details:\n    Version: 4.0.2\n"), "");
  EXPECT_EQ(OpenMpiVersionIn("mpirun (Open MPI) \n"), "");
  EXPECT_EQ(OpenMpiVersionIn(""), "");
  EXPECT_EQ(LibTorchVersionIn("espalier-worker 0.1.0\n"), "");
}

TEST(VersionsIn, TheWorkerNamesItsLibTorch) {
  const char* const answer = "espalier-worker 0.1.0 (LibTorch 2.6.0+cpu, Open MPI v4.1.4)\n";
  EXPECT_EQ(LibTorchVersionIn(answer), "2.6.0+cpu");
}

class Asked : public ::testing::Test {
 protected:
  v1::NodeVersions Ask(const std::string& mpirun, const std::string& worker,
                       absl::Duration limit = absl::Seconds(60)) {
    ProgramVersions versions(
        {.mpirun = mpirun, .worker = worker, .scratch = folder_.root(), .limit = limit},
        RealClock());
    EXPECT_TRUE(WaitUntil([&] {
      versions.Look();
      return versions.complete();
    }));
    return versions.versions();
  }
  ScratchFolder folder_;
};

TEST_F(Asked, ProgramsAnswerInTheirOwnTime) {
  const std::string mpirun =
      folder_.WriteScript("mpirun", "#!/bin/sh\nsleep 0.1; echo 'mpirun (Open MPI) 5.0.7'\n");
  const std::string worker =
      folder_.WriteScript("worker", "#!/bin/sh\necho 'espalier-worker 1 (LibTorch 2.6.0, x)'\n");
  const v1::NodeVersions versions = Ask(mpirun, worker);
  EXPECT_EQ(versions.open_mpi(), "5.0.7");
  EXPECT_EQ(versions.libtorch(), "2.6.0");
  EXPECT_EQ(versions.espalier(), ESPALIER_VERSION);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("version-0"))) << "answers are taken away";
}

TEST_F(Asked, WhoIsNotInTimeIsAskedOnceMore) {
  const std::string asked = folder_.path("asked");
  const std::string slow_once =
      folder_.WriteScript("mpirun", absl::StrCat("#!/bin/sh\nif [ -e ", asked,
                                                 " ]; then echo 'mpirun (Open MPI) 5.0.9'; "
                                                 "else touch ",
                                                 asked, "; exec sleep 600; fi\n"));
  EXPECT_EQ(Ask(slow_once, folder_.path("nothing"), absl::Seconds(1)).open_mpi(), "5.0.9");
}

TEST_F(Asked, WhoIsMissingOrHangsHasNoVersion) {
  const std::string hangs = folder_.WriteScript("hangs", "#!/bin/sh\nexec sleep 600\n");
  const v1::NodeVersions versions = Ask(folder_.path("nothing"), hangs, absl::Milliseconds(50));
  EXPECT_EQ(versions.open_mpi(), "");
  EXPECT_EQ(versions.libtorch(), "");
}

}  // namespace
}  // namespace espalier
