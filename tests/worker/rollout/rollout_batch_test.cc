// How many completions one rank samples at a time.
#include "worker/rollout/rollout_batch.h"

#include <gtest/gtest.h>

#include "common/platform/platform.h"
#include "tests/worker/rollout/sampling_world.h"

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

}  // namespace
}  // namespace espalier
