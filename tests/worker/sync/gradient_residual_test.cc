// What ranks still owe is summed where a checkpoint is made, and shows that work goes on.
#include "worker/sync/gradient_residual.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "worker/collective/in_process.h"

namespace espalier {
namespace {

// On a slow link one operation over a large model takes longer than a failure may.
TEST(GradientResidual, IsGatheredInPiecesThatShowProgress) {
  constexpr int64_t kPieces = 3, kElements = (kPieces - 1) * GradientResidual::kGatheredAtOnce + 5;
  const auto world = InProcessGroup(2, absl::Seconds(30), {});
  std::vector<GradientResidual> residuals(2);
  std::vector<ProgressBoard> boards(2);
  const auto gather = [&](int rank) {
    GradientResidual& residual = residuals[rank];
    ASSERT_TRUE(residual.Keep(kElements).ok());
    residual.Scatter(Rank(rank), 2);
    residual.values().copy_(torch::arange(kElements, torch::kFloat) * (rank + 1));
    EXPECT_TRUE(residual.Gather({*world[rank], RealClock(), boards[rank]}).ok());
  };
  std::thread other(gather, 1);
  gather(0);
  other.join();
  const torch::Tensor expected = torch::arange(kElements, torch::kFloat) * 3;
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(torch::equal(residuals[rank].values(), expected)) << "rank " << rank;
    EXPECT_EQ(boards[rank].work.load(), kPieces);
  }
}

}  // namespace
}  // namespace espalier
