// The short run of every target: its seeds, what broke a rule once, and thousands of damaged seeds,
// the same ones every time. For longer, with a seed of its own:
// ESPALIER_FUZZ_SECONDS=60 ESPALIER_FUZZ_SEED=7 build/tests/fuzz_tests
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <ostream>

#include "absl/strings/escaping.h"
#include "tests/fuzz/target.h"
#include "tests/worker/support/mutations.h"

namespace espalier {

static void PrintTo(const FuzzTarget& target, std::ostream* out) { *out << target.name; }

namespace {

constexpr int64_t kResidentMost = int64_t{2} << 30;  // with a sanitizer's own

// The most bytes of memory that this process has had.
int64_t PeakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return usage.ru_maxrss;
#else
  return int64_t{usage.ru_maxrss} << 10;
#endif
}

class FuzzShort : public testing::TestWithParam<FuzzTarget> {
 protected:
  void Expect(const std::string& input) {
    EXPECT_EQ(GetParam().check(input), "") << absl::CHexEscape(input.substr(0, 2000));
  }
};

TEST_P(FuzzShort, SeedsAreSoundInputs) {
  const std::vector<std::string> seeds = GetParam().seeds();
  ASSERT_FALSE(seeds.empty());
  for (const std::string& seed : seeds) Expect(seed);
}

TEST_P(FuzzShort, WhatWasFoundOnceHoldsNow) {
  for (const std::string& input : FormerFindings(GetParam())) Expect(input);
}

TEST_P(FuzzShort, DamagedInputsEndInAResultOrARefusal) {
  const std::vector<std::string> seeds = GetParam().seeds();
  FuzzRounds rounds(static_cast<uint64_t>(GetParam().short_rounds));
  while (rounds.Next() && !HasFailure()) {
    SCOPED_TRACE(rounds.seed());
    std::string input = seeds[rounds.random()() % seeds.size()];
    for (uint64_t left = rounds.random()() % 3 + 1; left > 0; --left) {
      input = GetParam().damage(input, rounds.random());
    }
    Expect(input);
  }
  EXPECT_LT(PeakResidentBytes(), kResidentMost);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzShort, testing::ValuesIn(FuzzTargets()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace espalier
