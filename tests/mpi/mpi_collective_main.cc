// Runs under mpirun, every rank the same. Modes: the conformance suite (default), or one of the
// failures named by an option; exit 0 when the rules hold on this rank.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "tests/worker/collective/conformance.h"
#include "worker/collective/mpi_collective.h"

namespace espalier {
namespace {

struct Arguments {
  MpiOptions mpi;
  std::string expect_refusal;
  int frozen_rank = -1;
};

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  arguments.mpi.transport = {.links = 4, .networks = "127.0.0.0/8", .socket_buffer_bytes = 1 << 20};
  arguments.mpi.failure_timeout = absl::Seconds(60);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i], value = argv[i + 1];
    int64_t number = 0;
    if (option == "--expect-refusal") {
      arguments.expect_refusal = value;
    } else if (!absl::SimpleAtoi(value, &number)) {
      std::fprintf(stderr, "%s takes a number, not '%s'\n", option.c_str(), value.c_str());
    } else if (option == "--chunk-bytes") {
      arguments.mpi.chunk_bytes = number;
    } else if (option == "--depth") {
      arguments.mpi.depth = static_cast<int>(number);
    } else if (option == "--frozen-rank") {
      arguments.frozen_rank = static_cast<int>(number);
      arguments.mpi.failure_timeout = absl::Seconds(1);
    }
  }
  return arguments;
}

int Report(const char* what, bool ok) {
  std::fprintf(stderr, "%s: %s\n", ok ? "ok" : "FAILED", what);
  return ok ? 0 : 1;
}

int RunRules(MpiCollective& collective) {
  int failures = 0;
  for (const conformance::Rule& rule : conformance::Rules()) {
    rule.check(collective);
    if (testing::Test::HasFailure()) ++failures;
    if (collective.rank() == Rank(0)) {
      std::printf("%s: %s\n", rule.name.c_str(), failures == 0 ? "ok" : "FAILED");
    }
  }
  collective.Finish();
  return failures == 0 ? 0 : 1;
}

// The frozen rank takes no part; the others must notice within the timeout and name it.
int RunFrozen(MpiCollective& collective, int frozen_rank) {
  if (collective.rank() == Rank(frozen_rank)) {
    RealClock().Sleep(absl::Seconds(4));
    _exit(0);
  }
  std::vector<float> values(100000);
  const absl::Status status = collective.Wait(collective.StartAllReduce(absl::MakeSpan(values)));
  const bool named = absl::IsDeadlineExceeded(status) &&
                     absl::StrContains(status.message(), std::to_string(frozen_rank));
  const int code = Report(std::string(status.message()).c_str(), named);
  RealClock().Sleep(absl::Seconds(4));
  _exit(code);
}

int Main(int argc, char** argv) {
  const Arguments arguments = Parse(argc, argv);
  auto collective = MpiCollective::Start(arguments.mpi, RealClock());
  if (!arguments.expect_refusal.empty()) {
    const bool refused = absl::IsFailedPrecondition(collective.status()) &&
                         absl::StrContains(collective.status().message(), arguments.expect_refusal);
    const int code = Report(collective.status().ToString().c_str(), refused);
    RealClock().Sleep(absl::Seconds(1));
    _exit(code);
  }
  if (!collective.ok()) return Report(collective.status().ToString().c_str(), false);
  if (arguments.frozen_rank >= 0) return RunFrozen(**collective, arguments.frozen_rank);
  return RunRules(**collective);
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return espalier::Main(argc, argv);
}
