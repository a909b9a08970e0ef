// Running out of memory makes the passes of an evaluation smaller and changes nothing else, on any
// rank.
#include "worker/train/evaluate.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/support/failing_allocator.h"
#include "tests/worker/support/tiny_model.h"
#include "worker/collective/in_process.h"
#include "worker/task/next_token.h"

namespace espalier {
namespace {

constexpr int64_t kTime = 6, kSequences = 7, kMicroBatch = 3;

std::shared_ptr<WindowTable> Text() {
  std::vector<int64_t> tokens(kSequences * kTime + 1);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i * i + 3 * i) % 23;
  return std::make_shared<WindowTable>(std::make_shared<VectorTokenRow>(std::move(tokens)), kTime);
}

struct Found {
  absl::StatusOr<Evaluation> evaluation = absl::UnknownError("did not run");
  bool failed = false;  // the allocation was made
  int freed = 0;
};

// Two ranks, of which the second one fails an allocation; what each found.
std::vector<Found> EvaluateWith(int64_t failing) {
  std::vector<std::unique_ptr<Collective>> group = InProcessGroup(2, absl::Seconds(60));
  const NextToken task(Text(), Text());
  std::vector<Found> found(2);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      TinyModel model(TinyModelConfig());
      ProgressBoard board;
      Evaluator evaluator({*group[rank], RealClock(), board}, *model.decoder, task, {});
      Found& mine = found[rank];
      const auto run = [&] {
        const auto found =
            evaluator.Run({.micro_batch = kMicroBatch, .free_memory = [&] { ++mine.freed; }});
        if (found.ok() && *found) mine.evaluation = **found;
        if (!found.ok()) mine.evaluation = found.status();
      };
      if (rank == 0 || failing == 0) return run();
      const FailingAllocator allocator(failing);
      run();
      mine.failed = FailingAllocator::failed();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return found;
}

TEST(Evaluator, AFailureAtAnyAllocationChangesNothing) {
  const Evaluation expected = EvaluateWith(0)[0].evaluation.value();
  EXPECT_EQ(expected.tokens, kSequences * kTime);
  int64_t n = 1;
  for (bool failed = true; failed; ++n) {
    const std::vector<Found> found = EvaluateWith(n);
    failed = found[1].failed;
    for (const Found& each : found) {
      ASSERT_TRUE(each.evaluation.ok()) << n << ": " << each.evaluation.status();
      EXPECT_NEAR(each.evaluation->loss, expected.loss, 1e-6) << n;
      EXPECT_EQ(each.evaluation->tokens, expected.tokens) << n;
    }
    EXPECT_EQ(found[0].freed, 0);
    EXPECT_EQ(found[1].freed, failed ? 1 : 0) << n;
  }
  EXPECT_GT(n, 20) << "a pass must allocate";
}

}  // namespace
}  // namespace espalier
