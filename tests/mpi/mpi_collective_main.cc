// Runs under mpirun, every rank the same: `mpi_tests [OPTION VALUE]...`. The mode is one of the
// table below or one of the conformance suite's rules of failures; each rank prints "ok: ..." or
// "FAILED: ...", and exits 0 when its rule holds.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "tests/worker/collective/conformance.h"
#include "worker/collective/mpi_collective.h"

namespace espalier {
namespace {

constexpr int kOddRank = 1;  // the one that misbehaves
constexpr absl::Duration kLongWait = absl::Seconds(4);

bool IsOdd(const Collective& collective) { return collective.rank() == Rank(kOddRank); }

int Report(absl::string_view what, bool ok) {
  std::fprintf(stderr, "%s: %s\n", ok ? "ok" : "FAILED", std::string(what).c_str());
  return ok ? 0 : 1;
}

// After a failure MPI cannot be ended. Waits a little, so that mpirun does not end the other ranks
// before they have reported.
[[noreturn]] void Leave(int code) {
  RealClock().Sleep(absl::Seconds(1));
  _exit(code);
}

// What the ranks wait in when something happens to one of them.
Operation::Kind kind_of_wait = Operation::Kind::kAllReduce;

// Of 3 ranks, each waits for rank 1 in it, or for one that does.
absl::Status ExchangeSomething(Collective& collective) {
  std::vector<float> values(1000000, 1.0F);
  std::vector<std::byte> bytes(4000000);
  return collective.Wait(collective.Start({.kind = kind_of_wait,
                                           .reduction = {absl::MakeSpan(values)},
                                           .bytes = absl::MakeSpan(bytes)}));
}

int CheckDeadlineNames(Collective& collective, const std::string& culprit) {
  const absl::Status status = ExchangeSomething(collective);
  return Report(status.message(),
                absl::IsDeadlineExceeded(status) && absl::StrContains(status.message(), culprit));
}

// Large sums show at which rate the data of each other rank arrives.
bool MeasuresEveryPeer(MpiCollective& collective) {
  std::vector<float> values(4 << 20, 1.0F);
  if (!collective.Wait(collective.StartAllReduce({absl::MakeSpan(values)})).ok()) return false;
  const std::vector<Arrivals> arrivals = collective.stats().arrivals;
  bool right = static_cast<int>(arrivals.size()) == collective.world_size();
  for (size_t rank = 0; right && rank < arrivals.size(); ++rank) {
    const bool other = Rank(static_cast<int64_t>(rank)) != collective.rank();
    right = (arrivals[rank].bytes > 0) == other && (arrivals[rank].seconds > 0) == other;
  }
  return right;
}

int Conformance(MpiCollective& collective, std::atomic<int64_t>&) {
  int failures = 0;
  for (const conformance::Rule& rule : conformance::Rules()) {
    rule.check(collective);
    if (testing::Test::HasFailure()) ++failures;
    if (collective.rank() == Rank(0)) Report(rule.name, failures == 0);
  }
  if (Report("LargeSumsMeasureEveryPeer", MeasuresEveryPeer(collective)) != 0) ++failures;
  if (!collective.Finish(absl::Seconds(60)).ok()) ++failures;
  return failures == 0 ? 0 : 1;
}

// One of the rules that leave the collective failed.
int FailureRule(MpiCollective& collective, const std::string& name) {
  for (const conformance::Rule& rule : conformance::FailureRules()) {
    if (rule.name != name) continue;
    rule.check(collective);
    Leave(Report(name, !testing::Test::HasFailure()));
  }
  Leave(Report("no such mode or rule: " + name, false));
}

// The process lives, but its compute thread takes no part.
int Idle(MpiCollective& collective, std::atomic<int64_t>&) {
  if (IsOdd(collective)) {
    RealClock().Sleep(kLongWait);
    _exit(0);
  }
  Leave(CheckDeadlineNames(collective, "not come to it, nor working: rank 1"));
}

// The whole process is stopped; mpirun ends it in the end.
int Stopped(MpiCollective& collective, std::atomic<int64_t>&) {
  if (IsOdd(collective)) raise(SIGSTOP);
  RealClock().Sleep(absl::Seconds(2));  // its silence is longer than the timeout
  Leave(CheckDeadlineNames(collective, "silent: rank 1"));
}

// A rank that works is waited for, far beyond the timeout.
int Slow(MpiCollective& collective, std::atomic<int64_t>& work) {
  for (int i = 0; IsOdd(collective) && i < 40; ++i) {
    ++work;
    RealClock().Sleep(kLongWait / 40);
  }
  const absl::Status status = ExchangeSomething(collective);
  const int code = Report(status.ToString(), status.ok());
  return collective.Finish(absl::Seconds(60)).ok() ? code : 1;
}

// mpirun ends everything when a rank dies: the others do not go on for ever.
int Killed(MpiCollective& collective, std::atomic<int64_t>&) {
  if (IsOdd(collective)) raise(SIGKILL);
  absl::Status status;
  while (status.ok()) status = ExchangeSomething(collective);
  Leave(Report(status.ToString(), true));
}

int Aborted(MpiCollective& collective, std::atomic<int64_t>&) {
  if (IsOdd(collective)) {
    RealClock().Sleep(kLongWait);
    _exit(0);
  }
  std::thread control([&] { collective.Abort(absl::CancelledError("fenced")); });
  const absl::Status status = ExchangeSomething(collective);
  control.join();
  const bool stays = collective.Broadcast({}, Rank(0)) == status;
  Leave(Report(status.ToString(), status == absl::CancelledError("fenced") && stays));
}

struct Mode {
  std::string name;
  int (*run)(MpiCollective& collective, std::atomic<int64_t>& work);
};
const std::vector<Mode>& Modes() {
  static const std::vector<Mode>& modes = *new std::vector<Mode>{
      {"conformance", Conformance}, {"idle", Idle},      {"stopped", Stopped}, {"slow", Slow},
      {"killed", Killed},           {"aborted", Aborted}};
  return modes;
}

int ExpectRefusal(const MpiOptions& options, const std::string& words) {
  const auto collective = MpiCollective::Start(options, RealClock());
  const bool refused = absl::IsFailedPrecondition(collective.status()) &&
                       absl::StrContains(collective.status().message(), words);
  Leave(Report(collective.status().ToString(), refused));
}

int RunMode(const MpiOptions& options, const std::string& name, std::atomic<int64_t>& work) {
  const auto collective = MpiCollective::Start(options, RealClock());
  if (!collective.ok()) Leave(Report(collective.status().ToString(), false));
  for (const Mode& mode : Modes()) {
    if (mode.name == name) return mode.run(**collective, work);
  }
  return FailureRule(**collective, name);
}

bool SetKindOfWait(const std::string& name) {
  if (name == "reduce_scatter") kind_of_wait = Operation::Kind::kReduceScatter;
  if (name == "all_gather") kind_of_wait = Operation::Kind::kAllGather;
  if (name == "broadcast") kind_of_wait = Operation::Kind::kBroadcast;
  return name == "all_reduce" || kind_of_wait != Operation::Kind::kAllReduce;
}

int Main(int argc, char** argv) {
  std::atomic<int64_t> work{0};
  MpiOptions options;
  options.transport = {.links = 4, .networks = "127.0.0.0/8", .socket_buffer_bytes = 1 << 20};
  options.failure_timeout = absl::Seconds(60);
  options.work = [&work] { return work.load(); };
  std::string mode = "conformance";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i], value = argv[i + 1];
    int64_t number = 0;
    if (option == "--expect-refusal") return ExpectRefusal(options, value);
    if (option == "--mode") {
      mode = value;
      if (mode != "conformance") options.failure_timeout = absl::Seconds(1);
    } else if (option == "--operation") {
      if (!SetKindOfWait(value)) return Report("no such operation: " + value, false);
    } else if (!absl::SimpleAtoi(value, &number)) {
      return Report(option + " takes a number, not " + value, false);
    } else if (option == "--chunk-bytes") {
      options.chunk_bytes = number;
    } else if (option == "--depth") {
      options.depth = static_cast<int>(number);
    } else if (option == "--ranks") {
      options.ranks = static_cast<int>(number);
    }
  }
  return RunMode(options, mode, work);
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return espalier::Main(argc, argv);
}
