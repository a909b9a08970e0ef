// Pairs of a chosen and a rejected answer: from rows to a folder and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/worker/data/model_tokenizers.h"
#include "worker/data/dataset.h"
#include "worker/data/inspect.h"
#include "worker/data/prepare.h"
#include "worker/data/preview.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTexts[] =
    R"({"prompt": "2 + 3 = ", "chosen": "5", "rejected": "six"}
{"prompt": "", "chosen": "a", "rejected": "b", "score": 3}
)";

PrepareOptions Options(const TestFolder& folder, const std::string& lines) {
  return {.inputs = {folder.Write("in/rows.jsonl", lines)},
          .output = folder / "out",
          .rows = RowOptions{},
          .split_by = SplitBy::kNone};
}

absl::StatusOr<PrepareResult> Prepare(const PrepareOptions& options) {
  return PrepareData(PosixFileSystem(), SmolLm(), options);
}

std::string Refusal(const std::string& lines) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, lines);
  options.rows->format = RowFormat::kPreferences;
  return std::string(Prepare(options).status().message());
}

// Pairs as "prompt[answer] prompt[answer]", with what counts between the brackets.
std::vector<std::string> Pairs(const std::string& folder, int64_t length = 300) {
  const auto data = Dataset::Open(folder, {});
  if (!data.ok()) return {std::string(data.status().message())};
  const auto table = data->Preferences(kTrainSplit, length);
  if (!table.ok()) return {std::string(table.status().message())};
  std::vector<std::string> pairs;
  for (int64_t i = 0; i < (*table)->size(); ++i) {
    const Samples row = *(*table)->Read({i});
    std::string& text = pairs.emplace_back();
    bool before = false;
    for (const RowPart& part : row.parts[0]) {
      if (!text.empty()) text += ' ';
      for (int64_t t = part.begin; t < part.end; ++t) {
        const bool counts = t > 0 && row.counted[t - 1] != 0;
        if (counts != before) text += counts ? "[" : "]";
        before = counts;
        absl::StrAppend(&text, *SmolLm().Piece(static_cast<int32_t>(row.tokens[t])));
      }
      text += before ? "]" : "";
      before = false;
    }
  }
  return pairs;
}

std::vector<std::string> PairsOf(const std::string& lines) {
  const TestFolder folder;
  const auto result = Prepare(Options(folder, lines));
  if (!result.ok()) return {std::string(result.status().message())};
  EXPECT_EQ(result->format, RowFormat::kPreferences);
  return Pairs(folder / "out");
}

TEST(Preferences, OfTextsAnswersAndTheirEndsCount) {
  EXPECT_THAT(PairsOf(kTexts), ElementsAre("2 + 3 = [5<|im_end|>] 2 + 3 = [six<|im_end|>]",
                                           "<|im_end|>[a<|im_end|>] <|im_end|>[b<|im_end|>]"));
}

// A prompt that is a list, one that is a text before an answer, and one that the lists begin with.
TEST(Preferences, OfMessagesTheTemplateMakesPromptAndAnswers) {
  const std::string yes = R"("chosen": [{"role": "assistant", "content": "yes"}])",
                    no = R"("rejected": [{"role": "assistant", "content": "no"}])";
  const std::string user = R"({"role": "user", "content": "well?"})";
  const std::string both = R"("chosen": [)" + user +
                           R"(, {"role": "assistant", "content": "yes"}], "rejected": [)" + user +
                           R"(, {"role": "assistant", "content": "no"}])";
  const std::vector<std::string> list =
      PairsOf(R"({"prompt": [)" + user + "], " + yes + ", " + no + "}");
  ASSERT_EQ(list.size(), 1u);
  EXPECT_THAT(list[0], HasSubstr("<|im_start|>user\nwell?<|im_end|>\n<|im_start|>assistant\n"
                                 "[yes<|im_end|>] "));
  EXPECT_THAT(list[0], HasSubstr("[no<|im_end|>]"));
  EXPECT_EQ(PairsOf(R"({"prompt": "well?", )" + yes + ", " + no + "}"), list);
  EXPECT_EQ(PairsOf(R"({"prompt": "well?", )" + both + "}"), list);
  EXPECT_EQ(PairsOf("{" + both + "}"), list);
}

TEST(Preferences, AnswersThatTheConversationsShareDoNotCount) {
  const std::string before =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "shared"},
          {"role": "user", "content": "b"}, {"role": "assistant", "content": )";
  std::string line =
      R"({"chosen": )" + before + R"("good"}], "rejected": )" + before + R"("bad"}]})";
  line.erase(std::remove(line.begin(), line.end(), '\n'), line.end());
  const std::vector<std::string> pairs = PairsOf(line);
  ASSERT_EQ(pairs.size(), 1u) << pairs[0];
  EXPECT_THAT(pairs[0], HasSubstr("[good<|im_end|>]"));
  EXPECT_THAT(pairs[0], HasSubstr("[bad<|im_end|>]"));
  EXPECT_THAT(pairs[0], Not(HasSubstr("[shared")));
}

TEST(Preferences, APairIsTwoExamplesOfTheFolderAndOneSample) {
  const TestFolder folder;
  std::string lines;
  for (int i = 0; i < 90; ++i) {
    absl::StrAppend(&lines, R"({"prompt": "p", "chosen": "c)", i, R"(", "rejected": "r)", i,
                    "\"}\n");
  }
  PrepareOptions options = Options(folder, lines);
  options.shard_tokens = 64;
  options.split_by = SplitBy::kDocument;
  const auto result = Prepare(options);
  ASSERT_TRUE(result.ok()) << result.status();
  const auto data = Dataset::Open(folder / "out", {});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(TokenManifestToJson(data->manifest()), TokenManifestToJson(result->manifest));
  const int64_t held_out = (*data->Preferences(kValidationSplit, 40))->size();
  const int64_t pairs = (*data->Preferences(kTrainSplit, 40))->size();
  EXPECT_GT(held_out, 0);
  EXPECT_EQ(pairs + held_out, 90);
  EXPECT_EQ(*CountTrainingSamples(folder / "out", {.sequence_length = 40}), pairs);
  EXPECT_EQ(data->manifest().splits.at(kTrainSplit).documents, 2 * pairs);
  const Samples two = *(*data->Preferences(kTrainSplit, 40))->Read({1, 0});
  EXPECT_EQ(two.UsedIds(), (std::vector<int64_t>{2, 3, 0, 1}));
}

TEST(Preferences, LoseTheFrontOfBothPromptsAndNoAnswer) {
  const TestFolder folder;
  PrepareOptions options =
      Options(folder, R"({"prompt": "abcdef", "chosen": "yes", "rejected": "n"})");
  const auto bytes = MakeByteTokenizer();
  ASSERT_TRUE(PrepareData(PosixFileSystem(), *bytes, options).ok());
  const auto data = Dataset::Open(folder / "out", {});
  const auto table = data->Preferences(kTrainSplit, 13);
  ASSERT_TRUE(table.ok()) << table.status();
  const Samples row = *(*table)->Read({0});
  const int64_t end = bytes->end_of_text();
  EXPECT_EQ(row.tokens, (std::vector<int64_t>{'c', 'd', 'e', 'f', 'y', 'e', 's', end, 'c', 'd', 'e',
                                              'f', 'n', end}));
  EXPECT_EQ(row.counted, (std::vector<uint8_t>{0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1}));
  EXPECT_EQ((*table)->Length(0), 14);
  EXPECT_EQ((*table)->summary().cut, 1);
  EXPECT_EQ((*table)->summary().longest, 18);
  EXPECT_THAT((*table)->summary().Warning(13), HasSubstr("1 of 1 pairs are longer than 14 tokens"));
  EXPECT_EQ((*data->Preferences(kTrainSplit, 17))->summary().Warning(17), "");
  EXPECT_EQ((*data->Preferences(kTrainSplit, 7))->Length(0), 8) << "a token of each prompt";
  const absl::Status status = data->Preferences(kTrainSplit, 6).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max-tokens 7 --long-rows skip"));
}

// The table is looked at, whatever its hash says.
TEST(Preferences, ATableOfWhatIsNoPairIsRefused) {
  const auto row = std::make_shared<VectorTokenRow>(std::vector<int64_t>{1, 2, 3, 4, 5, 6});
  const auto create = [&](std::vector<ExampleSpan> spans) {
    return PreferenceTable::Create(row, std::make_shared<VectorExampleIndex>(std::move(spans)),
                                   {.sequence_length = 8, .end_of_text = 0})
        .status()
        .code();
  };
  EXPECT_EQ(create({{0, 1, 3}, {3, 4, 6}}), absl::StatusCode::kOk);
  EXPECT_EQ(create({{0, 1, 6}}), absl::StatusCode::kDataLoss) << "odd";
  EXPECT_EQ(create({{0, 0, 3}, {3, 4, 6}}), absl::StatusCode::kDataLoss) << "no prompt";
  EXPECT_EQ(create({{0, 1, 3}, {4, 5, 6}}), absl::StatusCode::kDataLoss) << "a gap";
}

TEST(Preferences, RowsThatAreNoneAreToldWithFileAndLine) {
  const std::string good(kTexts);
  EXPECT_THAT(Refusal(good + R"({"prompt": "a", "chosen": "b"})"), HasSubstr("rows.jsonl:3"));
  EXPECT_THAT(Refusal(R"({"prompt": "a", "chosen": "b"})"), HasSubstr("no field 'rejected'"));
  EXPECT_THAT(Refusal(R"({"chosen": "b", "rejected": "c"})"), HasSubstr("no field 'prompt'"));
  EXPECT_THAT(Refusal(R"({"prompt": "a", "chosen": "b", "rejected": ""})"), HasSubstr("empty"));
  EXPECT_THAT(Refusal(R"({"prompt": "a", "chosen": "b", "rejected": "b"})"), HasSubstr("the same"));
  EXPECT_THAT(Refusal(R"({"prompt": "a", "chosen": [{"role": "assistant"}], "rejected": []})"),
              HasSubstr("prompt and 'chosen': message 2 has no 'content'"));
  EXPECT_THAT(Refusal(R"({"prompt": "a", "chosen": ["b"], "rejected": ["c"]})"),
              HasSubstr("is not an object"));
}

TEST(Preferences, AreNotCutAndCountByTheirAnswersAlone) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, kTexts);
  options.max_tokens = 6;
  EXPECT_THAT(std::string(Prepare(options).status().message()),
              HasSubstr("more than --max-tokens 6"));
  options.rows->loss = LossOn::kAll;
  EXPECT_THAT(std::string(Prepare(options).status().message()), HasSubstr("leave --loss out"));
  options.rows->loss = std::nullopt;
  options.long_rows = LongRows::kSkip;
  const auto result = Prepare(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->manifest.rows.too_long, 1);
}

TEST(Preferences, AreForTheTaskThatComparesAndShownToAPerson) {
  const TestFolder folder;
  ASSERT_TRUE(Prepare(Options(folder, kTexts)).ok());
  const auto data = Dataset::Open(folder / "out", {});
  EXPECT_THAT(std::string(data->Examples(kTrainSplit, 8).status().message()),
              HasSubstr("train.task: dpo uses them"));
  const auto shown = PreviewData(*data, SmolLm(), {.rows = 1});
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_THAT(*shown, HasSubstr("-- the rejected answer"));
  const auto inspected = InspectData(*data, SmolLm(), {});
  ASSERT_TRUE(inspected.ok()) << inspected.status();
  EXPECT_THAT(*inspected, HasSubstr("train, pair 0, chosen:\n  | 2 + 3 = 5"));
  const TestFolder other;
  PrepareOptions options{.inputs = {other.Write("in.txt", "some text")},
                         .output = other / "out",
                         .split_by = SplitBy::kNone};
  ASSERT_TRUE(Prepare(options).ok());
  EXPECT_THAT(
      std::string(Dataset::Open(other / "out", {})->Preferences("train", 8).status().message()),
      HasSubstr("--format preferences"));
}

}  // namespace
}  // namespace espalier
