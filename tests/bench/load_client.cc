// A cluster that asks much of espalierd, in one process over real gRPC: agents that report, ranks
// of hand-started jobs that send Progress and step reports, watchers, and an operator whose calls
// take the same way through the loop as everything else. One JSON line a window, after all have
// attached.
#include <grpcpp/channel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/load_peers.h"

namespace espalier::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Options {
  std::string target;
  int agents = 1000;
  int ranks_per_job = 50;
  // Messages a second of all together, and the part of them that agents send.
  double beats = 5000;
  double agents_share = 0.2;
  int watchers = 20;
  double probes_per_second = 20;
  double window_seconds = 60;
  int windows = 1;
  double patience_seconds = 120;
};

// An operator whose call changes nothing, but takes its turn in the loop: resume of what runs.
class Operator {
 public:
  Operator(const Options& options, std::string job)
      : stub_(v1::OperatorService::NewStub(Connect(options.target))), job_(std::move(job)) {
    thread_ =
        std::thread([this, pause = std::chrono::duration<double>(1 / options.probes_per_second)] {
          while (!stopping_) {
            Call();
            std::this_thread::sleep_for(pause);
          }
        });
  }
  ~Operator() {
    stopping_ = true;
    thread_.join();
  }
  // Milliseconds of the calls since the last time, sorted.
  std::vector<double> Take() {
    const std::lock_guard lock(mutex_);
    std::vector<double> taken = std::exchange(milliseconds_, {});
    std::sort(taken.begin(), taken.end());
    return taken;
  }
  int64_t failed() const { return failed_; }

 private:
  void Call() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    v1::ResumeRequest request;
    request.set_job_id(job_);
    v1::ResumeResponse response;
    const auto start = SteadyClock::now();
    const grpc::Status status = stub_->Resume(&context, request, &response);
    const std::chrono::duration<double, std::milli> took = SteadyClock::now() - start;
    if (!status.ok()) ++failed_;
    const std::lock_guard lock(mutex_);
    milliseconds_.push_back(took.count());
  }

  const std::unique_ptr<v1::OperatorService::Stub> stub_;
  const std::string job_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> failed_{0};
  std::mutex mutex_;
  std::vector<double> milliseconds_;
  std::thread thread_;
};

// Spreads the beats of its peers evenly over time.
template <typename One>
class Pacer {
 public:
  Pacer(const std::vector<std::unique_ptr<One>>& peers, double per_second)
      : peers_(peers), per_second_(per_second), start_(SteadyClock::now()) {}
  void BeatDue() {
    const std::chrono::duration<double> passed = SteadyClock::now() - start_;
    const auto due = static_cast<int64_t>(passed.count() * per_second_);
    for (; done_ < due; ++done_) peers_[static_cast<size_t>(done_) % peers_.size()]->Beat();
  }

 private:
  const std::vector<std::unique_ptr<One>>& peers_;
  const double per_second_;
  const SteadyClock::time_point start_;
  int64_t done_ = 0;
};

struct Totals {
  int64_t sent = 0, late = 0, broken = 0, watched = 0;
};

class Load {
 public:
  explicit Load(const Options& options) : options_(options) {}

  int Run() {
    const auto start = SteadyClock::now();
    for (int i = 0; i < options_.agents; ++i) {
      agents_.push_back(std::make_unique<Agent>(options_.target, i));
    }
    if (!AllAttached(agents_)) return Fail("the agents did not attach", agents_);
    const int ranks = options_.agents / options_.ranks_per_job * options_.ranks_per_job;
    for (int i = 0; i < ranks; ++i)
      workers_.push_back(std::make_unique<Worker>(options_.target, i, options_.ranks_per_job));
    if (!AllAttached(workers_)) return Fail("the workers did not attach", workers_);
    for (const auto& worker : workers_) worker->Beat();  // ready
    for (int i = 0; i < options_.watchers; ++i) {
      const size_t job = static_cast<size_t>(i * options_.ranks_per_job) % workers_.size();
      watchers_.push_back(std::make_unique<Watcher>(options_.target, workers_[job]->job()));
    }
    const std::chrono::duration<double> took = SteadyClock::now() - start;
    std::cout << nlohmann::json{{"attached", agents_.size() + workers_.size()},
                                {"attach_seconds", took.count()}}
              << std::endl;
    Operator probe(options_, workers_[0]->job());
    Pacer agents(agents_, options_.beats * options_.agents_share);
    Pacer workers(workers_, options_.beats * (1 - options_.agents_share));
    for (int window = 0; window < options_.windows; ++window) {
      const Totals before = Count();
      const auto begin = SteadyClock::now();
      const auto end = begin + std::chrono::duration<double>(options_.window_seconds);
      while (SteadyClock::now() < end) {
        agents.BeatDue();
        workers.BeatDue();
        std::this_thread::sleep_for(milliseconds(2));
      }
      const std::chrono::duration<double> seconds = SteadyClock::now() - begin;
      Print(before, Count(), seconds.count(), probe);
    }
    std::_Exit(0);  // streams have no end of their own
  }

 private:
  template <typename One>
  bool AllAttached(const std::vector<std::unique_ptr<One>>& peers) const {
    const auto end = SteadyClock::now() + std::chrono::duration<double>(options_.patience_seconds);
    while (SteadyClock::now() < end) {
      if (std::all_of(peers.begin(), peers.end(), [](const auto& one) { return one->attached(); }))
        return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }
  template <typename One>
  static int Fail(const std::string& what, const std::vector<std::unique_ptr<One>>& peers) {
    std::cerr << what;
    for (const auto& one : peers) {
      if (one->broken()) {
        std::cerr << ": " << one->error();
        break;
      }
    }
    std::cerr << std::endl;
    std::_Exit(1);
  }
  Totals Count() const {
    Totals totals;
    const auto add = [&](const auto& peers) {
      for (const auto& one : peers) {
        totals.sent += one->sent();
        totals.late += one->late();
        totals.broken += one->broken() ? 1 : 0;
      }
    };
    add(agents_);
    add(workers_);
    for (const auto& watcher : watchers_) {
      totals.watched += watcher->received();
      totals.broken += watcher->broken() ? 1 : 0;
    }
    return totals;
  }
  static void Print(const Totals& before, const Totals& after, double seconds, Operator& probe) {
    const std::vector<double> calls = probe.Take();
    const auto quantile = [&](double share) {
      if (calls.empty()) return 0.0;
      const auto last = static_cast<double>(calls.size() - 1);
      return calls[static_cast<size_t>(share * last)];
    };
    std::cout << nlohmann::json{{"seconds", seconds},
                                {"beats_per_second",
                                 static_cast<double>(after.sent - before.sent) / seconds},
                                {"late", after.late - before.late},
                                {"broken", after.broken},
                                {"watch_messages_per_second",
                                 static_cast<double>(after.watched - before.watched) / seconds},
                                {"calls", calls.size()},
                                {"calls_failed", probe.failed()},
                                {"call_p50_ms", quantile(0.5)},
                                {"call_p99_ms", quantile(0.99)},
                                {"call_max_ms", quantile(1)}}
              << std::endl;
  }

  const Options options_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Watcher>> watchers_;
};

}  // namespace
}  // namespace espalier::bench

int main(int argc, char** argv) {
  espalier::bench::Options options;
  CLI::App app("A cluster that asks much of espalierd.");
  app.add_option("--target", options.target, "gRPC's name of espalierd, \"unix:PATH\"")->required();
  app.add_option("--agents", options.agents, "agents; as many ranks attach");
  app.add_option("--ranks", options.ranks_per_job, "ranks of a job, at most 64");
  app.add_option("--beats", options.beats, "messages a second");
  app.add_option("--agents-share", options.agents_share, "part of them that agents send");
  app.add_option("--watchers", options.watchers, "watch streams");
  app.add_option("--window", options.window_seconds, "seconds of a window");
  app.add_option("--windows", options.windows, "how many");
  CLI11_PARSE(app, argc, argv);
  return espalier::bench::Load(options).Run();
}
