// What one event costs the coordinator's core in a large cluster: ticks, heartbeats, reports of
// agents and submissions, with a job on every node and as many in the queue. One JSON line a
// figure, in microseconds of one event; medians of ROUNDS.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/advance.h"

namespace espalier {
namespace {

v1::JobSpec Spec(const std::string& name) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_train()->set_steps(1000);
  spec.mutable_train()->set_global_batch(4);
  spec.mutable_parallel()->set_min_nodes(1);
  spec.mutable_health()->set_failure_timeout_seconds(1e6);
  spec.mutable_health()->set_max_restarts(3);
  spec.mutable_health()->set_restart_window_seconds(60);
  spec.mutable_launch()->set_timeout_seconds(1e6);
  return spec;
}

// A cluster in which every node has a job that runs, and as many jobs wait.
class Cluster {
 public:
  explicit Cluster(int64_t nodes) : nodes_(nodes) {
    CoordinatorStarted start;
    for (int64_t i = 0; i < nodes; ++i) start.nodes.emplace_back(absl::StrCat("node", i));
    Take(start);
    for (int64_t i = 0; i < nodes; ++i) Submit("runs");
    int64_t stream = 0;
    std::vector<WorkerAttached> hellos;
    for (const auto& [id, job] : state_.jobs) {
      WorkerAttached& hello = hellos.emplace_back();
      hello.stream = StreamId(++stream);
      hello.worker = {id, job.record.generation, Rank(0)};
      hello.world_size = 1;
      hello.node = job.record.nodes.front();
      hello.pid = 1;
    }
    for (const WorkerAttached& hello : hellos) Take(hello);
    for (const WorkerAttached& hello : hellos) Take(WorkerReady{.stream = hello.stream});
    for (int64_t i = 0; i < nodes; ++i) Submit("waits");
    for (int64_t i = 0; i < nodes; ++i) {
      AgentAttached hello;
      hello.stream = AgentStream(i);
      hello.node = NodeName(absl::StrCat("node", i));
      Take(hello);
    }
  }

  void Tick() { Take(espalier::Tick{}); }
  void Heartbeat(int64_t i) {
    Take(WorkerHeartbeat{.stream = StreamId(1 + i % nodes_),
                         .counters = {.phase = Phase::kCompute, .collective = i}});
  }
  void Report(int64_t i) { Take(AgentReported{.stream = AgentStream(i % nodes_)}); }
  void Submit(const std::string& name) {
    SubmitRequested request;
    request.spec = Spec(name);
    Take(request);
  }

 private:
  StreamId AgentStream(int64_t i) const { return StreamId(1 + nodes_ + i); }
  void Take(const Event& event) {
    now_ += absl::Milliseconds(1);
    Advance(state_, event, now_);
  }

  const int64_t nodes_;
  ClusterState state_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000'000);
};

// Microseconds of one call.
double Measure(int64_t calls, const std::function<void(int64_t)>& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) call(i);
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
  return time.count() / static_cast<double>(calls);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Run(int64_t nodes, int rounds) {
  Cluster cluster(nodes);
  std::vector<double> ticks, heartbeats, reports, submissions;
  for (int round = 0; round < rounds; ++round) {
    ticks.push_back(Measure(20, [&](int64_t) { cluster.Tick(); }));
    heartbeats.push_back(Measure(20'000, [&](int64_t i) { cluster.Heartbeat(i); }));
    reports.push_back(Measure(5'000, [&](int64_t i) { cluster.Report(i); }));
    submissions.push_back(Measure(10, [&](int64_t) { cluster.Submit("late"); }));
  }
  std::cout << nlohmann::ordered_json{{"benchmark", "core"},
                                      {"nodes", nodes},
                                      {"tick_us", Median(ticks)},
                                      {"heartbeat_us", Median(heartbeats)},
                                      {"agent_report_us", Median(reports)},
                                      {"submit_us", Median(submissions)}}
            << std::endl;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  CLI::App app("What one event costs the coordinator's core in a large cluster.");
  std::vector<int64_t> nodes = {10, 100, 1000};
  int rounds = 5;
  app.add_option("--nodes", nodes, "sizes of the cluster");
  app.add_option("--rounds", rounds, "rounds of which the median is taken");
  CLI11_PARSE(app, argc, argv);
  for (const int64_t size : nodes) espalier::Run(size, rounds);
  return 0;
}
