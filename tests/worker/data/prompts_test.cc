// Prompts that are to be completed: from rows to a folder and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/sha256.h"
#include "tests/worker/data/model_tokenizers.h"
#include "worker/data/dataset.h"
#include "worker/data/inspect.h"
#include "worker/data/prepare.h"
#include "worker/data/preview.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr char kRows[] =
    R"({"prompt": "2 + 3 = ", "record": {"answer": 5, "question": "2 + 3"}}
{"prompt": "<|im_start|>user", "record": {"answer": "é"}, "more": 1}
)";

PrepareOptions Options(const TestFolder& folder, const std::string& lines) {
  return {.inputs = {folder.Write("in/rows.jsonl", lines)},
          .output = folder / "out",
          .rows = RowOptions{.format = RowFormat::kPrompts},
          .split_by = SplitBy::kNone};
}

absl::StatusOr<PrepareResult> Prepare(const PrepareOptions& options) {
  return PrepareData(PosixFileSystem(), SmolLm(), options);
}

std::string Refusal(const std::string& lines) {
  const TestFolder folder;
  return std::string(Prepare(Options(folder, lines)).status().message());
}

TEST(Prompts, ComeBackWithTheirRecords) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, kRows);
  options.rows->format = std::nullopt;  // by their columns
  const auto result = Prepare(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->format, RowFormat::kPrompts);
  EXPECT_EQ(result->manifest.holds, DataKind::kPrompts);
  const auto data = Dataset::Open(folder / "out", {});
  ASSERT_TRUE(data.ok()) << data.status();
  const auto table = data->Prompts(kTrainSplit);
  ASSERT_TRUE(table.ok()) << table.status();
  ASSERT_EQ((*table)->size(), 2);
  EXPECT_EQ(*SmolLm().Decode((*table)->ids(0)), "2 + 3 = ");
  EXPECT_EQ((*table)->record(0), R"({"answer":5,"question":"2 + 3"})");
  EXPECT_EQ((*table)->ids(1)[0], *SmolLm().IdOf("<|im_start|>")) << "spelled out";
  EXPECT_EQ((*table)->record(1), R"({"answer":"é"})");
  EXPECT_EQ(*CountTrainingSamples(folder / "out", {.sequence_length = 8}), 2);
  // What the preparation says it wrote is what is read.
  EXPECT_EQ(TokenManifestToJson(data->manifest()), TokenManifestToJson(result->manifest));
}

TEST(Prompts, AreSplitByFiles) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, kRows);
  options.validation_inputs = {
      folder.Write("in/held.jsonl", R"({"prompt": "held out", "record": {}})")};
  options.split_by = SplitBy::kFiles;
  ASSERT_TRUE(Prepare(options).ok());
  const auto data = Dataset::Open(folder / "out", {});
  EXPECT_EQ((*data->Prompts(kValidationSplit))->record(0), "{}");
}

TEST(Prompts, OfManyShardsAreTheSame) {
  const TestFolder folder;
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    absl::StrAppend(&lines, R"({"prompt": "prompt )", i, R"(", "record": {"answer": )", i, "}}\n");
  }
  PrepareOptions options = Options(folder, lines);
  options.shard_tokens = 64;
  ASSERT_TRUE(Prepare(options).ok());
  const auto data = Dataset::Open(folder / "out", {});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_GT(data->manifest().splits.at("train").records.size(), 10U);
  const auto table = data->Prompts(kTrainSplit);
  ASSERT_TRUE(table.ok()) << table.status();
  for (int64_t i = 0; i < 300; ++i) {
    EXPECT_EQ(*SmolLm().Decode((*table)->ids(i)), absl::StrCat("prompt ", i));
    EXPECT_EQ((*table)->record(i), absl::StrCat(R"({"answer":)", i, "}"));
  }
}

TEST(Prompts, TakeTheListsOfWordleWithThem) {
  const TestFolder folder;
  folder.Write("in/words.txt", "CRANE\nALLEY\n");
  ASSERT_TRUE(Prepare(Options(folder, kRows)).ok());
  EXPECT_EQ(ReadText(folder / "out/words.txt"), "CRANE\nALLEY\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "out/secrets.txt"));
  ASSERT_TRUE(Dataset::Open(folder / "out", {}).ok());
  folder.Write("out/words.txt", "CRANE\n");
  const auto altered = Dataset::Open(folder / "out", {}).status();
  EXPECT_EQ(altered.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(altered.message()), HasSubstr("words.txt was altered"));
}

TEST(Prompts, AlteredRecordsAreFound) {
  const TestFolder folder;
  ASSERT_TRUE(Prepare(Options(folder, kRows)).ok());
  FlipByte(folder / "out/train-00000.records", kShardHeaderBytes + 3);
  EXPECT_EQ(Dataset::Open(folder / "out", {}).status().code(), absl::StatusCode::kDataLoss);
}

TEST(Prompts, RowsThatAreNoneAreToldWithFileAndLine) {
  const std::string good(kRows);
  EXPECT_THAT(Refusal(good + R"({"prompt": "a"})"), HasSubstr("rows.jsonl:3"));
  EXPECT_THAT(Refusal(good + R"({"prompt": "a"})"), HasSubstr("no object 'record'"));
  EXPECT_THAT(Refusal(R"({"prompt": "a", "record": "x"})"), HasSubstr("no object 'record'"));
  EXPECT_THAT(Refusal(R"({"prompt": "", "record": {}})"), HasSubstr("nothing to complete"));
  EXPECT_THAT(Refusal(R"({"record": {}})"), HasSubstr("prompt"));
}

TEST(Prompts, AreNotCutAndHaveNoLoss) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, kRows);
  options.max_tokens = 3;
  EXPECT_THAT(std::string(Prepare(options).status().message()),
              HasSubstr("more than --max-tokens"));
  options.max_tokens = 0;
  options.rows->loss = LossOn::kAll;
  EXPECT_THAT(std::string(Prepare(options).status().message()), HasSubstr("leave --loss out"));
}

TEST(Prompts, AreForTasksThatSample) {
  const TestFolder folder;
  ASSERT_TRUE(Prepare(Options(folder, kRows)).ok());
  const auto data = Dataset::Open(folder / "out", {});
  EXPECT_THAT(std::string(data->Examples(kTrainSplit, 8).status().message()),
              HasSubstr("train.task: rft and grpo use them"));
  EXPECT_EQ(data->Prompts(kValidationSplit).status().code(), absl::StatusCode::kNotFound);
  const TestFolder text;
  PrepareOptions options{.inputs = {text.Write("in.txt", "some text")},
                         .output = text / "out",
                         .split_by = SplitBy::kNone};
  ASSERT_TRUE(Prepare(options).ok());
  EXPECT_THAT(std::string(Dataset::Open(text / "out", {})->Prompts(kTrainSplit).status().message()),
              HasSubstr("--format prompts"));
}

TEST(Prompts, AreShownToAPerson) {
  const TestFolder folder;
  ASSERT_TRUE(Prepare(Options(folder, kRows)).ok());
  const auto data = Dataset::Open(folder / "out", {});
  const auto shown = PreviewData(*data, SmolLm(), {.rows = 1});
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_THAT(*shown, HasSubstr("train, prompt 0: "));
  EXPECT_THAT(*shown, HasSubstr(R"(record | {"answer":5)"));
  EXPECT_EQ(PreviewData(*data, SmolLm(), {.first = 2}).status().code(),
            absl::StatusCode::kOutOfRange);
  const auto inspected = InspectData(*data, SmolLm(), {});
  ASSERT_TRUE(inspected.ok()) << inspected.status();
  EXPECT_THAT(*inspected, HasSubstr("holds       prompts"));
  EXPECT_THAT(*inspected, HasSubstr("train, prompt 0:"));
}

}  // namespace
}  // namespace espalier
