// What the shard planner is worth, and what it costs. For clusters of given speeds, whose steps are
// a few per cent noisy: the rate of all ranks together as a part of the sum of what each reaches
// alone, with even shares and with planned ones, and the steps until the imbalance is below 5 %.
// And the time of a plan for many nodes. One JSON line a figure.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/planner.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// Ranks that take so long for a sequence, and a twentieth of a sequence of the first besides.
struct Machines {
  std::vector<Runner> truth;
  std::vector<PlannedRank> ranks;
};

Machines MachinesOf(const std::vector<double>& speeds) {
  Machines machines;
  for (const double speed : speeds) {
    machines.truth.push_back({.time = {0.005, 0.1 / speed}});
    machines.ranks.push_back({.node = NodeName(absl::StrCat("n", machines.ranks.size()))});
  }
  return machines;
}

// Of the rates that the ranks reach alone, the part that they reach together.
double Efficiency(int32_t batch, const std::vector<int32_t>& sequences,
                  const std::vector<Runner>& truth) {
  double alone = 0;
  for (const Runner& runner : truth) alone += batch / runner.time.Seconds(batch);
  return batch / LatestFinish(sequences, truth) / alone;
}

double Imbalance(const std::vector<int32_t>& sequences, const std::vector<Runner>& truth) {
  return LatestFinish(sequences, truth) / MeanFinish(sequences, truth) - 1;
}

// Twenty steps from even shares.
void RunCluster(const std::vector<double>& speeds, int32_t batch, double noise) {
  Machines machines = MachinesOf(speeds);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<> any(1 - noise, 1 + noise);
  ShardPlan plan = FirstPlan(batch, machines.ranks);
  const double even = Efficiency(batch, plan.sequences, machines.truth);
  PlanWatch watch;
  int moves = 0, balanced_after = -1;
  for (int step = 0; step < 20; ++step) {
    const bool balanced = Imbalance(plan.sequences, machines.truth) < 0.05;
    if (balanced && balanced_after < 0) balanced_after = step;
    for (size_t i = 0; i < machines.ranks.size(); ++i) {
      const double seconds = machines.truth[i].time.Seconds(plan.sequences[i]);
      machines.ranks[i].speed.Add(plan.sequences[i], seconds * any(random));
    }
    if (auto next = Reconsider(plan.sequences, machines.ranks, watch)) {
      plan = *std::move(next);
      ++moves;
    }
  }
  std::cout << Json{{"benchmark", "planner"},
                    {"speeds", absl::StrJoin(speeds, ":")},
                    {"batch", batch},
                    {"noise", noise},
                    {"even_efficiency", even},
                    {"planned_efficiency", Efficiency(batch, plan.sequences, machines.truth)},
                    {"imbalance", Imbalance(plan.sequences, machines.truth)},
                    {"balanced_after_steps", balanced_after},
                    {"moves_in_20_steps", moves}}
            << std::endl;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Nodes of any speed between 1 and 20, all measured.
void TimePlan(int nodes, int32_t batch, int rounds) {
  std::mt19937_64 random(1);
  std::vector<double> speeds;
  for (int i = 0; i < nodes; ++i) speeds.push_back(1 + static_cast<double>(random() % 1900) / 100);
  Machines machines = MachinesOf(speeds);
  const ShardPlan even = FirstPlan(batch, machines.ranks);
  for (size_t i = 0; i < machines.ranks.size(); ++i) {
    const int32_t share = even.sequences[i];
    machines.ranks[i].speed.Add(share, machines.truth[i].time.Seconds(share));
  }
  std::vector<double> times;
  Outlook outlook;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    outlook = Predict(even.sequences, machines.ranks);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count());
  }
  std::cout << Json{{"benchmark", "planner"},
                    {"nodes", nodes},
                    {"batch", batch},
                    {"plan_ms", Median(times)},
                    {"even_efficiency", Efficiency(batch, even.sequences, machines.truth)},
                    {"planned_efficiency", Efficiency(batch, outlook.best, machines.truth)}}
            << std::endl;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  CLI::App app("What the shard planner is worth, and what it costs.");
  int rounds = 51;
  double noise = 0.03;
  app.add_option("--rounds", rounds, "rounds of which the median is taken");
  app.add_option("--noise", noise, "how much steps differ, as a fraction");
  CLI11_PARSE(app, argc, argv);
  espalier::RunCluster({2, 1}, 48, noise);
  espalier::RunCluster({1, 0.45}, 32, noise);
  espalier::RunCluster({4, 2, 1, 1}, 64, noise);
  espalier::RunCluster({1, 1}, 32, noise);
  for (const int nodes : {10, 100, 1000}) espalier::TimePlan(nodes, nodes * 32, rounds);
  espalier::TimePlan(1000, 1 << 20, rounds);
  return 0;
}
