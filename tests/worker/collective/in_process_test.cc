#include "worker/collective/in_process.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/worker/collective/conformance.h"

namespace espalier {
namespace {

void OnEveryRank(int ranks, absl::Duration timeout, const std::function<void(Collective&)>& body) {
  std::vector<std::unique_ptr<Collective>> group = InProcessGroup(ranks, timeout);
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

TEST(InProcess, AMissingRankIsADeadlineExceeded) {
  OnEveryRank(3, absl::Milliseconds(50), [](Collective& collective) {
    if (collective.rank() == Rank(2)) return;
    std::vector<float> values(10);
    const absl::Status status =
        collective.Wait(collective.StartAllReduce({absl::MakeSpan(values)}));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  });
}

TEST(InProcess, AbortEndsTheWaitOfAllRanks) {
  OnEveryRank(3, absl::Seconds(60), [](Collective& collective) {
    if (collective.rank() == Rank(2)) {
      collective.Abort(absl::CancelledError("fenced"));
      return;
    }
    std::vector<float> values(10);
    EXPECT_EQ(collective.Wait(collective.StartAllReduce({absl::MakeSpan(values)})),
              absl::CancelledError("fenced"));
  });
}

}  // namespace
}  // namespace espalier
