// The rules of a Collective for when something goes wrong. Each leaves it failed.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "absl/strings/match.h"
#include "common/base/clock.h"
#include "tests/worker/collective/conformance.h"

namespace espalier::conformance {
namespace {

constexpr int kOddRank = 1;  // the one that does something else
bool IsOdd(const Collective& collective) { return collective.rank() == Rank(kOddRank); }

// One rank starts `odd`, the others `even`: all that depend on it get an error that names both.
void ExpectMismatch(Collective& collective, const Operation& even, const Operation& odd,
                    const std::vector<std::string>& words) {
  const absl::Status status = collective.Wait(collective.Start(IsOdd(collective) ? odd : even));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  for (const std::string& word : words) {
    EXPECT_TRUE(absl::StrContains(status.message(), word)) << status;
  }
}

struct Memory {
  std::vector<float> values = std::vector<float>(300000, 1.0F);
  std::vector<std::byte> bytes = std::vector<std::byte>(1200004);

  Operation Sum(Operation::Kind kind, size_t n, WireType wire = WireType::kFp32) {
    return {.kind = kind, .reduction = {absl::MakeSpan(values).subspan(0, n), wire}};
  }
  Operation Copy(Operation::Kind kind, size_t n) {
    return {.kind = kind, .bytes = absl::MakeSpan(bytes).subspan(0, n)};
  }
};
using Kind = Operation::Kind;

void OtherKindsAreNamed(Collective& collective) {
  Memory memory;
  ExpectMismatch(collective, memory.Sum(Kind::kAllReduce, 100), memory.Copy(Kind::kAllGather, 400),
                 {"an all-reduce of 400 bytes as fp32", "an all-gather of 400 bytes", "rank 1"});
}

void OtherSizesAreNamed(Collective& collective) {
  Memory memory;
  ExpectMismatch(collective, memory.Sum(Kind::kAllReduce, 300000),
                 memory.Sum(Kind::kAllReduce, 200000), {"1200000 bytes", "800000 bytes"});
}

void OtherWiresAreNamed(Collective& collective) {
  Memory memory;
  ExpectMismatch(collective, memory.Sum(Kind::kReduceScatter, 300000),
                 memory.Sum(Kind::kReduceScatter, 300000, WireType::kBf16), {"as fp32", "as bf16"});
}

void OtherPartsAreNamed(Collective& collective) {
  Memory memory;
  Operation odd = memory.Copy(Kind::kAllGather, 1200000);
  odd.part_ends = AllOf(1200000, 0, collective.world_size());
  ExpectMismatch(collective, memory.Copy(Kind::kAllGather, 1200000), odd, {"in other parts"});
}

// The root waits for nobody; the odd rank is told by the root's announcement.
void AnotherSizeOfABroadcastIsNamed(Collective& collective) {
  Memory memory;
  const Operation odd = memory.Copy(Kind::kBroadcast, 1000);
  if (IsOdd(collective)) {
    ExpectMismatch(collective, odd, odd, {"1000 bytes from rank 0", "2000 bytes from rank 0"});
  } else {
    (void)collective.Wait(collective.Start(memory.Copy(Kind::kBroadcast, 2000)));
  }
}

// A rank fails by itself while its spans are part of an exchange that others have not come to, or
// are in the middle of.
void SpansMayBeFreedAfterAbortAndQuiesce(Collective& collective) {
  constexpr float kMine = -7;
  auto memory = std::make_unique<Memory>();
  std::vector<Operation> operations = {memory->Sum(Kind::kAllReduce, 300000, WireType::kBf16),
                                       memory->Copy(Kind::kAllGather, 1200004),
                                       memory->Sum(Kind::kReduceScatter, 300000)};
  if (IsOdd(collective)) operations.resize(1);
  for (const Operation& operation : operations) collective.Start(operation);
  RealClock().Sleep(absl::Milliseconds(20));
  collective.Abort(absl::CancelledError("a pass has failed"));
  ASSERT_TRUE(collective.Quiesce().ok());
  std::fill(memory->values.begin(), memory->values.end(), kMine);
  RealClock().Sleep(absl::Milliseconds(100));
  EXPECT_EQ(std::count(memory->values.begin(), memory->values.end(), kMine), 300000);
  memory.reset();
  std::vector<float> others(10);
  EXPECT_FALSE(collective.Wait(collective.StartAllReduce({absl::MakeSpan(others)})).ok());
  EXPECT_TRUE(collective.Quiesce().ok());
}

}  // namespace

const std::vector<Rule>& FailureRules() {
  static const std::vector<Rule>& rules = *new std::vector<Rule>{
      {"OtherKindsAreNamed", OtherKindsAreNamed},
      {"OtherSizesAreNamed", OtherSizesAreNamed},
      {"OtherWiresAreNamed", OtherWiresAreNamed},
      {"OtherPartsAreNamed", OtherPartsAreNamed},
      {"AnotherSizeOfABroadcastIsNamed", AnotherSizeOfABroadcastIsNamed},
      {"SpansMayBeFreedAfterAbortAndQuiesce", SpansMayBeFreedAfterAbortAndQuiesce},
  };
  return rules;
}

}  // namespace espalier::conformance
