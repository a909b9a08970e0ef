// espalier_sim: runs many seeds of the simulator on several threads and says which rule broke, each
// failure cut down to the shortest run that shows it. Exit status: 0 every rule held, 1 one did
// not, 2 wrong command line.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "coordinator/core/facts.h"
#include "tests/sim/simulation.h"

namespace espalier::sim {
namespace {

struct Wish {
  uint64_t from = 1;
  uint64_t seeds = 1;
  int jobs = 0;
  bool trace = false;
  double fault_seconds = 60;
};

// The seeds of one run, given out one at a time, and what became of them.
class Campaign {
 public:
  explicit Campaign(const Wish& wish) : wish_(wish) {}

  void Work() ABSL_LOCKS_EXCLUDED(mutex_) {
    for (;;) {
      RunOptions options{.trace = wish_.trace, .fault_time = absl::Seconds(wish_.fault_seconds)};
      {
        absl::MutexLock lock(&mutex_);
        if (given_ == wish_.seeds) return;
        options.seed = wish_.from + given_++;
      }
      RunResult result = Simulate(options);
      if (!result.failure.empty() && !wish_.trace) result = Shrink(options);
      Note(result);
    }
  }

  bool Done() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return done_ == wish_.seeds;
  }

  std::string Progress() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start_);
    const double rate = static_cast<double>(done_) / std::max(seconds, 1e-3);
    return absl::StrCat(done_, " of ", wish_.seeds, " seeds, ", failures_, " failed, ",
                        static_cast<int64_t>(rate), " a second");
  }

  int64_t Summarise() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    std::string text =
        absl::StrCat(done_, " seeds, ", failures_, " failed; ", generations_, " generations;");
    for (const auto& [state, count] : ends_) {
      absl::StrAppend(&text, " ", count, " ", JobStateName(state));
    }
    std::puts(text.c_str());
    return failures_;
  }

 private:
  void Note(const RunResult& result) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (const std::string& line : result.trace) std::puts(line.c_str());
    for (const auto& [state, count] : result.ends) ends_[state] += count;
    generations_ += result.generations;
    ++done_;
    if (result.failure.empty()) return;
    ++failures_;
    std::puts(result.failure.c_str());
    std::fflush(stdout);
  }

  const Wish wish_;
  const absl::Time start_ = absl::Now();
  absl::Mutex mutex_;
  uint64_t given_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t generations_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<JobState, int64_t> ends_ ABSL_GUARDED_BY(mutex_);
};

// A line that is written over on a terminal, one in ten seconds elsewhere; on stderr.
void ShowProgress(Campaign& campaign) {
  const bool terminal = isatty(STDERR_FILENO) == 1;
  const absl::Duration interval = terminal ? absl::Milliseconds(500) : absl::Seconds(10);
  absl::Time next = absl::Now() + interval;
  while (!campaign.Done()) {
    absl::SleepFor(absl::Milliseconds(50));
    if (absl::Now() < next) continue;
    next = absl::Now() + interval;
    std::fputs(
        absl::StrCat(terminal ? "\r" : "", campaign.Progress(), terminal ? "" : "\n").c_str(),
        stderr);
  }
  if (terminal) std::fputs("\r\033[K", stderr);
}

int Run(const Wish& wish) {
  Campaign campaign(wish);
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (int i = 0; i < (wish.jobs > 0 ? wish.jobs : cores); ++i) {
    threads.emplace_back([&campaign] { campaign.Work(); });
  }
  ShowProgress(campaign);
  for (std::thread& thread : threads) thread.join();
  return campaign.Summarise() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace espalier::sim

int main(int argc, char** argv) {
  espalier::sim::Wish wish;
  CLI::App app("The coordinator's core under simulated faults; see tests/sim/README.md.");
  app.add_option("--seeds", wish.seeds, "How many")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  app.add_option("--from", wish.from, "The first; the others follow");
  app.add_option("--jobs", wish.jobs, "Threads; 0: one a core")->check(CLI::NonNegativeNumber);
  app.add_option("--faults", wish.fault_seconds, "Seconds of simulated time with faults")
      ->check(CLI::Range(0.0, 3600.0));
  app.add_flag("--trace", wish.trace, "Print everything that happens, and do not shorten failures");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return espalier::sim::Run(wish);
}
