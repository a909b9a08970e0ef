// A puzzle is answered as it was trained: in a row of as many places, of which those behind it hold
// the end of text.
#include <gtest/gtest.h>

#include "tests/worker/support/tiny_trm.h"
#include "worker/data/example_table.h"
#include "worker/generation/recursive_generation.h"
#include "worker/task/deep_supervision.h"

namespace espalier {
namespace {

constexpr int64_t kPlaces = 6;
constexpr int32_t kEnd = 22;

// One puzzle, and answers that do not matter.
std::shared_ptr<const SampleTable> TableOf(const std::vector<int32_t>& puzzle) {
  const auto size = static_cast<int64_t>(puzzle.size());
  std::vector<int64_t> tokens(puzzle.begin(), puzzle.end());
  tokens.resize(puzzle.size() * 2, 1);
  tokens.push_back(kEnd);
  return std::make_shared<ExampleTable>(*ExampleTable::Create(
      std::make_shared<VectorTokenRow>(std::move(tokens)),
      std::make_shared<VectorExampleIndex>(
          std::vector<ExampleSpan>{{.prompt = 0, .completion = size, .end = 2 * size + 1}}),
      {.sequence_length = 2 * kPlaces, .end_of_text = kEnd}));
}

// The likeliest ids in the row that training makes of it.
std::vector<int32_t> AsTrained(const RecursiveModel& model, const std::vector<int32_t>& puzzle) {
  const DeepSupervision task(DeepSupervision::Kind::kPuzzle, kPlaces, TableOf(puzzle), nullptr, 1);
  Transfers transfers{torch::kCPU};
  torch::NoGradGuard no_grad;
  const TokenBatch batch = task.Batch(*task.training()->Read({0}), {0, 1}, transfers);
  EXPECT_EQ(batch.inputs.size(1), kPlaces);
  RecursiveModel::State state = model.Begin(1, kPlaces);
  for (int step = 0; step < 3; ++step) state = model.Think(batch.inputs, state);
  const torch::Tensor best = model.Logits(state.high)[0].argmax(1).to(torch::kInt).contiguous();
  return {best.data_ptr<int32_t>(), best.data_ptr<int32_t>() + puzzle.size()};
}

TEST(PuzzleAnswers, AShortOneIsAnsweredInTheRowThatItWasTrainedIn) {
  for (const bool mixes : {false, true}) {
    DecoderConfig config = TinyTrmConfig(/*causal=*/false);
    config.recursion->mix_positions = mixes;
    const TinyTrm tiny(config);
    for (const std::vector<int32_t>& puzzle :
         {std::vector<int32_t>{3, 1, 4}, {9, 2}, {7, 7, 7, 5}, {3, 1, 4, 1, 5, 9}}) {
      const auto answer = Answer(*tiny.model, puzzle, kEnd);
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(*answer, AsTrained(*tiny.model, puzzle)) << puzzle.size() << " places";
    }
  }
}

}  // namespace
}  // namespace espalier
