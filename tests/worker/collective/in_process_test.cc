#include "worker/collective/in_process.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/worker/collective/conformance.h"

namespace espalier {
namespace {

void OnEveryRank(int ranks, absl::Duration timeout, const std::function<void(Collective&)>& body,
                 const ExchangeOptions& options = {}) {
  std::vector<std::unique_ptr<Collective>> group = InProcessGroup(ranks, timeout, options);
  std::vector<std::thread> threads;
  for (auto& member : group) threads.emplace_back([&] { body(*member); });
  for (std::thread& thread : threads) thread.join();
}

using Case = std::tuple<int, conformance::Rule>;
class InProcessConformance : public testing::TestWithParam<Case> {};

TEST_P(InProcessConformance, Holds) {
  const auto& [ranks, rule] = GetParam();
  OnEveryRank(ranks, absl::Seconds(60), rule.check);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, InProcessConformance,
                         testing::Combine(testing::Range(1, 6),
                                          testing::ValuesIn(conformance::Rules())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "_" +
                                  std::to_string(std::get<0>(info.param));
                         });

// Many chunks in every operation, more than fit the depth, and whole blocks of the wire.
class InProcessInSmallChunks : public testing::TestWithParam<conformance::Rule> {};

TEST_P(InProcessInSmallChunks, Holds) {
  OnEveryRank(3, absl::Seconds(60), GetParam().check, {.chunk_bytes = 65540, .depth = 2});
}

INSTANTIATE_TEST_SUITE_P(Rules, InProcessInSmallChunks, testing::ValuesIn(conformance::Rules()),
                         [](const auto& info) { return info.param.name; });

class InProcessFailures : public testing::TestWithParam<Case> {};

TEST_P(InProcessFailures, Holds) {
  const auto& [ranks, rule] = GetParam();
  OnEveryRank(ranks, absl::Seconds(60), rule.check);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, InProcessFailures,
                         testing::Combine(testing::Range(2, 6),
                                          testing::ValuesIn(conformance::FailureRules())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "_" +
                                  std::to_string(std::get<0>(info.param));
                         });

constexpr Operation::Kind kKinds[] = {Operation::Kind::kAllReduce, Operation::Kind::kReduceScatter,
                                      Operation::Kind::kAllGather, Operation::Kind::kBroadcast};

Operation OfKind(Operation::Kind kind, absl::Span<float> values, absl::Span<std::byte> bytes) {
  return {.kind = kind, .reduction = {values}, .bytes = bytes};
}

TEST(InProcess, AMissingRankIsADeadlineExceeded) {
  for (const Operation::Kind kind : kKinds) {
    OnEveryRank(3, absl::Milliseconds(50), [kind](Collective& collective) {
      if (collective.rank() == Rank(2)) return;
      std::vector<float> values(10);
      std::vector<std::byte> bytes(2 << 20);
      const absl::Status status = collective.Wait(
          collective.Start(OfKind(kind, absl::MakeSpan(values), absl::MakeSpan(bytes))));
      // Of a broadcast, rank 1 may already have all that it needs.
      if (status.ok() && kind == Operation::Kind::kBroadcast) return;
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    });
  }
}

TEST(InProcess, AbortEndsTheWaitOfAllRanks) {
  for (const Operation::Kind kind : kKinds) {
    OnEveryRank(3, absl::Seconds(60), [kind](Collective& collective) {
      if (collective.rank() == Rank(0)) {
        collective.Abort(absl::CancelledError("fenced"));
        return;
      }
      std::vector<float> values(10);
      std::vector<std::byte> bytes(10);
      EXPECT_EQ(collective.Wait(
                    collective.Start(OfKind(kind, absl::MakeSpan(values), absl::MakeSpan(bytes)))),
                absl::CancelledError("fenced"));
    });
  }
}

// Ranks give up at any place of an operation while others are in the middle of it; each frees its
// memory at once.
TEST(InProcess, NoRankTouchesTheMemoryOfOneThatGaveUp) {
  for (int run = 0; run < 20; ++run) {
    OnEveryRank(4, absl::Microseconds(200), [run](Collective& collective) {
      auto values = std::make_unique<std::vector<float>>(500000, 1.0F);
      auto bytes = std::make_unique<std::vector<std::byte>>(1500000);
      (void)collective.Wait(collective.Start(
          OfKind(kKinds[run % 4], absl::MakeSpan(*values), absl::MakeSpan(*bytes))));
    });
  }
}

}  // namespace
}  // namespace espalier
