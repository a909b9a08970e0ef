// How many completions one rank samples at a time.
#include "worker/rollout/rollout_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/platform/platform.h"
#include "tests/worker/rollout/sampling_world.h"
#include "tests/worker/support/failing_allocator.h"
#include "worker/tokenizer/open_tokenizer.h"

namespace espalier {
namespace {

int64_t RowsOf(const RolloutLimits& limits, const RolloutOrder& order) {
  const TinyModel model(ByteConfig());
  const std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  const RolloutAround around;
  return RolloutBatch({*model.decoder, *tokenizer, order, limits, around}).rows();
}

TEST(RolloutBatch, HasNoMoreRowsThanThereAreCompletions) {
  RolloutOrder order = SomeOrder(4, 5);
  EXPECT_EQ(RowsOf({}, order), 20);
  order.prompts[1].samples = 1;
  EXPECT_EQ(RowsOf({}, order), 16);
  EXPECT_EQ(RowsOf({.rows = 3}, order), 3);
  EXPECT_EQ(RowsOf({}, SomeOrder(20, 40)), kRolloutRows);
}

// The model, and what it is trained with, is there already.
TEST(RolloutBatch, TakesAQuarterOfWhatIsFreeAndNotOfWhatThereIs) {
  const absl::StatusOr<ProcessMemory> process = ReadProcessMemory();
  ASSERT_TRUE(process.ok()) << process.status();
  const int64_t taken = process->now_bytes - process->file_bytes;
  EXPECT_EQ(RowsOf({.memory_bytes = taken / 2}, SomeOrder(4, 5)), 1);
  EXPECT_EQ(RowsOf({.memory_bytes = 4 * taken}, SomeOrder(4, 5)), 20);
}

TEST(RolloutBatch, WorkersOfAMachineShareWhatIsFree) {
  EXPECT_EQ(RowsOf({.sharers = 1 << 30}, SomeOrder(4, 5)), 1);
}

// As espalier generate, chat and serve do: with the ids that end turns, special tokens without a
// text that a stop text could find.
TEST(RolloutBatch, ATurnEndsACompletionAsItEndsAnAnswer) {
  const std::unique_ptr<Tokenizer> tokenizer =
      *OpenTokenizer(ESPALIER_SOURCE_DIR "/tests/data/tokenizers/qwen2-tiny");
  DecoderConfig config = ByteConfig();
  config.vocab_size = tokenizer->vocab_size();
  config.max_position_embeddings = 256;
  const TinyModel model(config);
  const int32_t end_of_turn = *tokenizer->IdOf("<|im_end|>");
  const RolloutOrder order = SomeOrder(8, 8);
  const RolloutLimits limits{.max_new_tokens = 200};
  const RolloutAround around;
  RolloutBatch batch({*model.decoder, *tokenizer, order, limits, around});
  for (int64_t i = 0; i < 64; ++i) ASSERT_TRUE(batch.Begin({i / 8, i % 8}).ok());
  std::vector<Rollout> ended;
  while (batch.running() > 0) ASSERT_TRUE(batch.Turn(ended).ok());
  int seen = 0;
  for (const Rollout& one : ended) {
    const auto end = std::find(one.ids.begin(), one.ids.end(), end_of_turn);
    if (end == one.ids.end()) continue;
    ++seen;
    EXPECT_EQ(end + 1, one.ids.end());
    EXPECT_TRUE(one.stopped);
  }
  EXPECT_GT(seen, 0);
}

// All that four items become; memory runs out in the first turn where `free_memory` is not null.
std::vector<Rollout> Sampled(std::function<void()> free_memory) {
  const TinyModel model(ByteConfig());
  const std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  const RolloutOrder order = SomeOrder(2, 2);
  const RolloutLimits limits{.max_new_tokens = 6};
  const RolloutAround around{.free_memory = free_memory};
  RolloutBatch batch({*model.decoder, *tokenizer, order, limits, around});
  for (int64_t i = 0; i < 4; ++i) EXPECT_TRUE(batch.Begin({i / 2, i % 2}).ok());
  std::vector<Rollout> ended;
  if (free_memory) {
    const FailingAllocator failing(1);
    EXPECT_TRUE(batch.Turn(ended).ok());
    EXPECT_TRUE(batch.ran_out());
  }
  while (batch.running() > 0) EXPECT_TRUE(batch.Turn(ended).ok());
  std::sort(ended.begin(), ended.end(), [](const Rollout& a, const Rollout& b) {
    return std::pair(a.prompt, a.sample) < std::pair(b.prompt, b.sample);
  });
  return ended;
}

TEST(RolloutBatch, BeginsAgainWhatRanWhenMemoryRunsOutTwice) {
  std::optional<FailingAllocator> again;  // the next generator's memory
  const std::vector<Rollout> ended = Sampled([&again] { again.emplace(1); });
  ASSERT_TRUE(again.has_value());
  ExpectEqual(ended, Sampled(nullptr));
}

}  // namespace
}  // namespace espalier
