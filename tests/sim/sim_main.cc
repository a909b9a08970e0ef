// espalier_sim --seed N [--seeds M] [--trace]: runs M seeds from N on; says which rule broke.
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "coordinator/core/facts.h"
#include "tests/sim/simulation.h"

namespace {

constexpr char kUsage[] = "usage: espalier_sim --seed N [--seeds M] [--trace]\n";

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = 0;
  uint64_t seeds = 1;
  bool trace = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    uint64_t* number = option == "--seed" ? &seed : option == "--seeds" ? &seeds : nullptr;
    if (option == "--trace") {
      trace = true;
    } else if (number == nullptr || i + 1 == argc || !absl::SimpleAtoi(argv[++i], number)) {
      std::fputs(kUsage, stderr);
      return 2;
    }
  }
  std::map<espalier::JobState, int64_t> ends;
  int64_t generations = 0;
  int64_t failures = 0;
  for (uint64_t next = seed; next < seed + seeds; ++next) {
    const espalier::sim::RunResult result = espalier::sim::Simulate({.seed = next, .trace = trace});
    for (const std::string& line : result.trace) std::puts(line.c_str());
    for (const auto& [state, count] : result.ends) ends[state] += count;
    generations += result.generations;
    if (result.failure.empty()) continue;
    ++failures;
    std::printf("%s\n", result.failure.c_str());
  }
  std::printf("%llu seeds, %lld failed; %lld generations;", static_cast<unsigned long long>(seeds),
              static_cast<long long>(failures), static_cast<long long>(generations));
  for (const auto& [state, count] : ends) {
    std::printf(" %lld %s", static_cast<long long>(count),
                std::string(espalier::JobStateName(state)).c_str());
  }
  std::puts("");
  return failures == 0 ? 0 : 1;
}
