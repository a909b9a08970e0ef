// Adapters of a small model, trained by two machines of which one has three times the other's
// share, while workers and agents are killed: the run ends with the bits of one machine that nobody
// disturbs.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "tests/cluster/cluster.h"

namespace espalier::cluster {
namespace {

constexpr char kAdaptersJob[] = R"(
name: adapters
model: {from: SOURCES/tests/data/models/quickstart}
data: {path: data, sequence_length: 64}
train:
  steps: STEPS
  global_batch: 8
  reproducible: true
  lora: {rank: 8, alpha: 16, dropout: 0.1}
  schedule: {kind: constant, warmup_steps: 0}
parallel: {PARALLEL}
checkpoint: {every_steps: 0}
evaluate: {every_steps: 0, max_sequences: 8}
health: {failure_timeout_seconds: 10, max_restarts: 1000, restart_backoff_seconds: 0.1}
launch: {threads: 1, timeout_seconds: 60}
)";
constexpr double kPatience = 120;  // seconds; far more than anything takes

enum class Victim { kWorkerOfStudio, kWorkerOfMacbook, kAgentOfStudio, kAgentOfMacbook };

class AdaptersOnTwoMachines : public testing::Test {
 protected:
  std::string Start(const std::string& parallel, int64_t steps) const {
    std::ofstream(cluster_.folder() + "/adapters.yaml") << absl::StrReplaceAll(
        kAdaptersJob,
        {{"SOURCES", ESPALIER_SOURCE_DIR}, {"PARALLEL", parallel}, {"STEPS", absl::StrCat(steps)}});
    return cluster_.Submit({}, "adapters.yaml");
  }

  // Of the job on a disk; how many steps its checkpoint holds, 0: there is none.
  int64_t Kept(const std::string& disk, const std::string& job) const {
    const std::string output = Shell(absl::StrCat("ls ", cluster_.folder(), "/", disk, "/jobs/",
                                                  job, "/checkpoints | sed -n 's/^step-0*//p'"))
                                   .output;
    int64_t steps = 0;
    return absl::SimpleAtoi(output, &steps) ? steps : 0;
  }

  // What that checkpoint has: adapters, and their optimizer's state.
  std::string Trained(const std::string& disk, const std::string& job, int64_t steps) const {
    const std::string folder = absl::StrFormat("%s/%s/jobs/%s/checkpoints/step-%08d/",
                                               cluster_.folder(), disk, job, steps);
    std::string bytes;
    for (const char* name : {"adapter_model.safetensors", "optimizer.safetensors"}) {
      std::ifstream file(folder + name, std::ios::binary);
      EXPECT_TRUE(file) << folder << name;
      bytes.append(std::istreambuf_iterator<char>(file), {});
    }
    return bytes;
  }

  // At any moment of a step: what is committed is kept, and no generation begins before it.
  void Kill(const std::string& job, Victim victim) {
    const auto agent = [&](const std::string& machine) {
      cluster_.KillAgent(machine);
      cluster_.StartAgent(machine);
    };
    const auto worker = [&](size_t rank) {
      const int restarts = cluster_.Job(job).value("restarts", 0);
      kill(cluster_.Pids(job)[rank], SIGKILL);
      ASSERT_TRUE(Eventually(
          [&] {
            return cluster_.Job(job).value("restarts", 0) > restarts &&
                   cluster_.StateOf(job) == "RUNNING";
          },
          kPatience))
          << cluster_.Story(job);
    };
    switch (victim) {
      case Victim::kWorkerOfStudio:
        return worker(0);
      case Victim::kWorkerOfMacbook:
        return worker(1);
      case Victim::kAgentOfStudio:
        return agent("studio");
      case Victim::kAgentOfMacbook:
        return agent("macbook");
    }
  }

  Cluster cluster_{Nodes::kAgents};
};

TEST_F(AdaptersOnTwoMachines, EndWithTheBitsOfOneThroughKillsOfWorkersAndAgents) {
  // It ends when it is told to: kills find it at work however fast it is.
  const std::string job =
      Start("nodes: [studio, macbook], min_nodes: 2, max_nodes: 2, shares: [3, 1]", 1'000'000);
  int64_t kills = 0;
  for (const Victim victim :
       {Victim::kWorkerOfMacbook, Victim::kAgentOfMacbook, Victim::kWorkerOfStudio,
        Victim::kAgentOfStudio, Victim::kWorkerOfMacbook, Victim::kWorkerOfStudio}) {
    ASSERT_TRUE(cluster_.WaitForStepAfter(job, 10 * ++kills, kPatience));
    Kill(job, victim);
  }
  ASSERT_EQ(cluster_.Cli("checkpoint " + job).exit_code, 0);
  for (const char* disk : {"state", "disk-of-macbook"}) {
    ASSERT_TRUE(Eventually([&] { return Kept(disk, job) > 0; }, kPatience)) << disk;
  }
  ASSERT_EQ(cluster_.Cli("cancel " + job).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(job, "CANCELLED", kPatience));
  const int64_t steps = Kept("state", job);
  EXPECT_EQ(cluster_.Job(job).value("restarts", 0), 4) << "a generation for each killed worker";
  const std::string events = cluster_.Cli("events " + job).output;
  EXPECT_EQ(events.find("goes back"), std::string::npos) << events;

  const std::string quiet = Start("nodes: [studio], min_nodes: 1", steps);
  ASSERT_TRUE(cluster_.WaitForState(quiet, "COMPLETED", kPatience));
  const std::string expected = Trained("state", quiet, steps);
  ASSERT_FALSE(expected.empty());
  for (const char* disk : {"state", "disk-of-macbook"}) {
    EXPECT_TRUE(Trained(disk, job, steps) == expected) << disk;
  }
}

}  // namespace
}  // namespace espalier::cluster
