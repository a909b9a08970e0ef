#include "coordinator/launcher/mpirun_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<OpenMpiVersion> Probe(const ScratchFolder& folder, const std::string& script) {
  return ProbeOpenMpi({.mpirun = folder.WriteScript("mpirun", "#!/bin/sh\n" + script),
                       .scratch = folder.path("scratch"),
                       .limit = absl::Seconds(1)},
                      RealClock());
}

TEST(ProbeOpenMpi, KnowsBothVersions) {
  ScratchFolder folder;
  EXPECT_EQ(*Probe(folder, "echo 'mpirun (Open MPI) 4.1.4'"), OpenMpiVersion::kFour);
  EXPECT_EQ(*Probe(folder, "echo 'mpirun (Open MPI) 5.0.9'"), OpenMpiVersion::kFive);
  EXPECT_FALSE(std::filesystem::exists(folder.path("scratch")));
}

TEST(ProbeOpenMpi, NamesWhatItFoundInstead) {
  ScratchFolder folder;
  const absl::Status status = Probe(folder, "echo 'HYDRA build details'").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("HYDRA"));
}

TEST(ProbeOpenMpi, DoesNotWaitForEver) {
  ScratchFolder folder;
  EXPECT_EQ(Probe(folder, "sleep 1000").status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ProbeOpenMpi, TheInstalledOneIsKnown) {
  ScratchFolder folder;
  EXPECT_TRUE(
      ProbeOpenMpi({.mpirun = "mpirun", .scratch = folder.path("scratch")}, RealClock()).ok());
}

}  // namespace
}  // namespace espalier
