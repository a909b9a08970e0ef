// What a worker learns from the variables that mpirun gives its processes.
#include "worker/launch_environment.h"

#include <gtest/gtest.h>

#include <map>

namespace espalier {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchEnvironment Read(const Variables& variables) {
  return ReadLaunchEnvironment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

// As Open MPI 4 sets them.
Variables OfMpirun(const std::string& rank, const std::string& transports) {
  return {
      {"OMPI_COMM_WORLD_SIZE", "4"},       {"OMPI_COMM_WORLD_RANK", rank},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"PMIX_NAMESPACE", "469434369"},     {"OMPI_MCA_orte_precondition_transports", transports}};
}

TEST(LaunchEnvironment, IsOneRankWithoutMpirun) {
  const LaunchEnvironment environment = Read({});
  EXPECT_FALSE(environment.under_mpirun);
  EXPECT_EQ(environment.ranks, 1);
  EXPECT_EQ(environment.run_id, "");
}

TEST(LaunchEnvironment, SaysWhichRankOfHowManyThisIs) {
  const LaunchEnvironment environment = Read(OfMpirun("3", "5ed6-5362"));
  EXPECT_TRUE(environment.under_mpirun);
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.ranks, 4);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.local_ranks, 2);
}

TEST(LaunchEnvironment, RanksOfOneMpirunShareItsRunId) {
  EXPECT_EQ(Read(OfMpirun("0", "5ed6-5362")).run_id, Read(OfMpirun("3", "5ed6-5362")).run_id);
}

// A container that is started again has the same host name and the same process numbers.
TEST(LaunchEnvironment, ANewMpirunWithTheSameNamespaceHasAnotherRunId) {
  EXPECT_NE(Read(OfMpirun("0", "5ed6-5362")).run_id, Read(OfMpirun("0", "e5d0-9bea")).run_id);
}

// Open MPI 5 tells its processes nothing random.
TEST(LaunchEnvironment, APersonCanTellTwoMpirunsApart) {
  Variables first = {{"OMPI_COMM_WORLD_SIZE", "1"}, {"PMIX_NAMESPACE", "prterun-vm-7@1"}};
  Variables second = first;
  first["ESPALIER_RUN_ID"] = "monday";
  second["ESPALIER_RUN_ID"] = "tuesday";
  EXPECT_NE(Read(first).run_id, Read(second).run_id);
}

std::vector<std::string> Missing(const Variables& variables) {
  std::vector<std::string> names;
  const auto read = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  for (const SpinBound& bound : MissingSpinBounds(read)) names.push_back(bound.variable);
  return names;
}

TEST(SpinBounds, AreSetWhereNobodyHasSetThem) {
  EXPECT_EQ(Missing({}), (std::vector<std::string>{"GOMP_SPINCOUNT", "KMP_BLOCKTIME"}));
  EXPECT_EQ(Missing({{"KMP_BLOCKTIME", "200"}}), std::vector<std::string>{"GOMP_SPINCOUNT"});
  EXPECT_TRUE(Missing({{"GOMP_SPINCOUNT", "1"}, {"KMP_BLOCKTIME", "0"}}).empty());
  EXPECT_TRUE(Missing({{"OMP_WAIT_POLICY", "active"}}).empty());
}

TEST(OpenMpRuntimes, TwoThatWouldEndTheProcessAreNamed) {
  const std::string brew = "/opt/homebrew/opt/libomp/lib/libomp.dylib";
  const std::string own = "/opt/torch/lib/libomp.dylib";
  EXPECT_TRUE(CheckOpenMpRuntimes({"/usr/lib/libSystem.B.dylib", brew, brew}).ok());
  EXPECT_TRUE(CheckOpenMpRuntimes({"/lib/libgomp.so.1", "/opt/lib/libgomp-1.so", brew}).ok())
      << "libgomp ends no process";
  const absl::Status two = CheckOpenMpRuntimes({brew, "/opt/libtorch_cpu.dylib", own});
  EXPECT_EQ(two.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(two.message()).find(brew + " and " + own), std::string::npos) << two;
  EXPECT_FALSE(CheckOpenMpRuntimes({brew, "/opt/intel/libiomp5.dylib"}).ok());
}

}  // namespace
}  // namespace espalier
