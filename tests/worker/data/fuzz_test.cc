// Damaged rows: counted or told, in time, and never a crash. For longer:
// ESPALIER_FUZZ_SECONDS=600 build-asan/tests/worker_data_tests --gtest_filter='Fuzz*'
#include <gtest/gtest.h>

#include "tests/worker/data/model_tokenizers.h"
#include "tests/worker/support/mutations.h"
#include "worker/data/dataset.h"
#include "worker/data/prepare.h"
#include "worker/data/preview.h"

namespace espalier {
namespace {

constexpr absl::string_view kRows[] = {
    R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "é 🚀"},)"
    R"( {"role": "assistant", "content": "<|im_end|>y"}, {"role": "user", "content": ""},)"
    R"( {"role": "assistant", "content": "2", "tool_calls": [{"a": [1.5, null, true]}]}]})"
    "\n",
    R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})"
    "\n",
    R"({"instruction": "a", "input": "b\n\n", "output": "c", "system": null})"
    "\n",
    R"({"prompt": "a", "completion": " \ud83d\ude80"})"
    "\n",
    R"({"text": "<|im_start|>user\na<|im_end|>"})"
    "\n"};

constexpr absl::string_view kWords[] = {
    "\n",     "{",        "}",       "[",         "]",           ",",        ":",
    "\"",     "\\",       "null",    "1e999",     "-0",          "\\ud83d",  "\xff",
    "\"a\":", "[[[[[[[[", "{\"a\":", "\"role\"",  "\"content\"", "messages", "assistant",
    "from",   "text",     "\\u0000", "<|im_end|>"};

TEST(Fuzz, DamagedRows) {
  FuzzRounds rounds(400);
  const TestFolder folder;
  while (rounds.Next()) {
    SCOPED_TRACE(rounds.seed());
    std::string lines;
    const uint64_t first = rounds.random()(), same = rounds.random()() % 4;
    for (uint64_t i = rounds.random()() % 4 + 1; i > 0; --i) {
      absl::StrAppend(&lines, kRows[(same > 0 ? first : rounds.random()()) % std::size(kRows)]);
    }
    PrepareOptions options{
        .inputs = {folder.Write("in.jsonl", Mutated(lines, kWords, rounds.random()))},
        .output = folder / "out",
        .rows = RowOptions{},
        .split_by = SplitBy::kNone};
    options.bad_rows = rounds.random()() % 4 > 0 ? BadRowPolicy::kSkip : BadRowPolicy::kError;
    options.max_tokens = static_cast<int64_t>(rounds.random()() % 40);
    if (rounds.random()() % 2 == 0) options.rows->loss = LossOn::kCompletions;
    const auto result = PrepareData(PosixFileSystem(), SmolLm(), options);
    if (!result.ok()) {
      ASSERT_FALSE(result.status().message().empty());
      ASSERT_FALSE(std::filesystem::exists(folder / "out"));
      continue;
    }
    const RowCounts& rows = result->manifest.rows;
    ASSERT_EQ(rows.read, rows.left_out() + result->manifest.splits.at("train").documents);
    const auto data = Dataset::Open(folder / "out", {});
    ASSERT_TRUE(data.ok()) << data.status();
    const auto shown = PreviewData(*data, SmolLm(), {.sequence_length = 16, .colour = true});
    ASSERT_TRUE(shown.ok()) << shown.status();
    std::filesystem::remove_all(folder / "out");
  }
}

}  // namespace
}  // namespace espalier
