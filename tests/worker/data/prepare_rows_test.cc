// Conversations and texts that are examples: from files to rows of tokens and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/worker/data/model_tokenizers.h"
#include "worker/data/dataset.h"
#include "worker/data/inspect.h"
#include "worker/data/prepare.h"
#include "worker/data/preview.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

PrepareOptions Options(const TestFolder& folder, const std::string& lines) {
  return {.inputs = {folder.Write("in.jsonl", lines)},
          .output = folder / "out",
          .rows = RowOptions{},
          .split_by = SplitBy::kNone};
}

absl::StatusOr<PrepareResult> Prepare(const PrepareOptions& options) {
  return PrepareData(PosixFileSystem(), SmolLm(), options);
}

std::string Chat(const std::string& asked, const std::string& answered) {
  return nlohmann::json{{"messages",
                         {{{"role", "user"}, {"content", asked}},
                          {{"role", "assistant"}, {"content", answered}}}}}
             .dump() +
         "\n";
}

// The examples of a split; of each the tokens that count, as text.
std::vector<std::string> Counted(const std::string& folder, const std::string& split,
                                 int64_t length = 300) {
  const auto data = Dataset::Open(folder, {});
  if (!data.ok()) return {std::string(data.status().message())};
  const auto table = data->Masked(split, length);
  if (!table.ok()) return {std::string(table.status().message())};
  std::vector<std::string> counted;
  for (int64_t i = 0; i < (*table)->size(); ++i) {
    const Samples row = *(*table)->Read({i});
    std::string& text = counted.emplace_back();
    for (size_t t = 0; t < row.counted.size(); ++t) {
      if (row.counted[t] == 0) continue;
      text += std::string(*SmolLm().Piece(static_cast<int32_t>(row.tokens[t + 1])));
    }
  }
  return counted;
}

TEST(PrepareRows, AnswersCountInTheRowsOfTheFolder) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, Chat("a", "the answer") + "\n" + Chat("b", "2"));
  options.rows->loss = LossOn::kCompletions;
  const auto result = Prepare(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->format, RowFormat::kMessages);
  EXPECT_EQ(result->manifest.rows, (RowCounts{.read = 2}));
  EXPECT_EQ(result->manifest.splits.at("train").loss_runs, 2);
  EXPECT_THAT(Counted(folder / "out", "train"), ElementsAre("the answer<|im_end|>", "2<|im_end|>"));
}

TEST(PrepareRows, OfATextAllButTheFirstTokenCounts) {
  const TestFolder folder;
  ASSERT_TRUE(Prepare(Options(folder, "{\"text\": \"<|im_start|>abc\", \"id\": 1}\n")).ok());
  EXPECT_THAT(Counted(folder / "out", "train"), ElementsAre("abc<|im_end|>"));
}

TEST(PrepareRows, TheLengthOfASequenceCutsTheEnd) {
  const TestFolder folder;
  ASSERT_TRUE(Prepare(Options(folder, "{\"text\": \"<|im_start|>1234567\"}\n")).ok());
  EXPECT_THAT(Counted(folder / "out", "train", 3), ElementsAre("123"));
  const auto table = Dataset::Open(folder / "out", {})->Masked("train", 3);
  EXPECT_EQ((*table)->summary().cut, 1);
  EXPECT_THAT((*table)->summary().Warning(3), HasSubstr("of 1, 1 lose their end"));
}

TEST(PrepareRows, BadOnesEndThePreparationWithFileAndLine) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, Chat("a", "b") + "{\"messages\": []}\n");
  const absl::Status status = Prepare(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in.jsonl:2: the list 'messages' is empty"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--bad-rows skip"));
}

TEST(PrepareRows, OrAreLeftOutToldAndCounted) {
  const TestFolder folder;
  PrepareOptions options =
      Options(folder, "oops\n" + Chat("a", "b") + "{\"messages\": []}\n{\"messages\": 3}\n" +
                          Chat("long", std::string(4000, 'x')) + Chat("c", "d"));
  std::vector<std::string> told;
  options.bad_rows = BadRowPolicy::kSkip;
  options.bad_row = [&](const std::string& message) { told.push_back(message); };
  options.max_tokens = 300;
  options.long_rows = LongRows::kSkip;
  const auto result = Prepare(options);
  ASSERT_TRUE(result.ok()) << result.status();
  const RowCounts counts{.read = 6, .empty = 1, .malformed = 2, .too_long = 1};
  EXPECT_EQ(result->manifest.rows, counts);
  EXPECT_EQ(Dataset::Open(folder / "out", {})->manifest().rows, counts);
  EXPECT_EQ(result->manifest.splits.at("train").documents, 2);
  EXPECT_THAT(told, ElementsAre(HasSubstr("in.jsonl:1: not valid JSON"), HasSubstr("in.jsonl:3: "),
                                HasSubstr("in.jsonl:4: "), HasSubstr("in.jsonl:5: the row has ")));
  EXPECT_EQ(DescribeRows(counts), "6 read; left out: 1 empty, 2 malformed, 1 too long");
}

TEST(PrepareRows, LongOnesLoseTheirEndAndAreCounted) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, "{\"text\": \"123456\"}\n{\"text\": \"1\"}\n");
  options.max_tokens = 4;
  const auto result = Prepare(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->manifest.rows, (RowCounts{.read = 2, .cut = 1}));
  EXPECT_EQ(result->manifest.splits.at("train").tokens, 4 + 2);
}

TEST(PrepareRows, PairsLeftOutAreInTheManifestToo) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, R"({"prompt": "a", "completion": "b"})"
                                           "\n{\"prompt\": 1}\n");
  options.bad_rows = BadRowPolicy::kSkip;
  ASSERT_TRUE(Prepare(options).ok());
  const auto data = Dataset::Open(folder / "out", {});
  EXPECT_EQ(data->manifest().holds, DataKind::kPromptCompletion);
  EXPECT_EQ(data->manifest().rows, (RowCounts{.read = 2, .malformed = 1}));
}

TEST(PrepareRows, AreSplitByTheirHashAndNoneIsOnBothSides) {
  const TestFolder folder;
  std::string lines;
  for (int i = 0; i < 500; ++i) lines += Chat(absl::StrCat("q", i % 250), "a");  // each twice
  PrepareOptions options = Options(folder, lines);
  options.split_by = SplitBy::kAuto;
  ASSERT_TRUE(Prepare(options).ok());
  const auto whole = [&](const std::string& split) {
    const auto table = *Dataset::Open(folder / "out", {})->Masked(split, 300);
    std::set<std::vector<int64_t>> rows;
    for (int64_t i = 0; i < table->size(); ++i) rows.insert(table->Read({i})->tokens);
    EXPECT_EQ(static_cast<int64_t>(rows.size()) * 2, table->size());
    return rows;
  };
  const auto train = whole("train"), validation = whole("validation");
  EXPECT_EQ(train.size() + validation.size(), 250u);
  EXPECT_NEAR(static_cast<double>(validation.size()), 25, 14);
  for (const auto& row : validation) EXPECT_EQ(train.count(row), 0u);
}

TEST(PrepareRows, TheFormatIsThatOfTheFirstRow) {
  const TestFolder folder;
  const auto mixed = Prepare(Options(folder, Chat("a", "b") + "{\"text\": \"c\"}\n"));
  EXPECT_THAT(std::string(mixed.status().message()),
              HasSubstr("in.jsonl:2: no list 'messages' (the line has: 'text')"));
  const auto both = Prepare(Options(folder, "{\"text\": \"c\", \"messages\": []}\n"));
  EXPECT_THAT(std::string(both.status().message()), HasSubstr("in.jsonl:1: the line has the"));
}

TEST(PrepareRows, OfOneTextHaveNoCompletions) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, "{\"text\": \"c\"}\n");
  options.rows->loss = LossOn::kCompletions;
  EXPECT_EQ(Prepare(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PrepareRows, ADamagedTableIsRefused) {
  const TestFolder folder;
  ASSERT_TRUE(Prepare(Options(folder, Chat("a", "b") + Chat("c", "d"))).ok());
  const auto refused = [&](TokenRun run) {
    const auto row = std::make_shared<VectorTokenRow>(std::vector<int64_t>(10));
    const std::vector<MaskedSpan> spans{{0, 4, 0, 0}, {4, 10, 0, 1}};
    return MaskedTable::Create(row, std::make_shared<VectorMaskedIndex>(spans, std::vector{run}),
                               {.sequence_length = 8})
        .status();
  };
  EXPECT_TRUE(refused({4, 10}).ok());
  for (const TokenRun run : {TokenRun{3, 6}, TokenRun{6, 6}, TokenRun{6, 11}, TokenRun{-1, 6}}) {
    EXPECT_EQ(refused(run).code(), absl::StatusCode::kDataLoss) << run.begin << " " << run.end;
  }
  FlipByte(folder / "out/train-00000.runs", 70);
  EXPECT_EQ(Dataset::Open(folder / "out", {}).status().code(), absl::StatusCode::kDataLoss);
}

TEST(PrepareRows, InspectSaysWhatBecameOfThem) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, Chat("a", "b") + "{}\n");
  options.bad_rows = BadRowPolicy::kSkip;
  ASSERT_TRUE(Prepare(options).ok());
  const auto text = InspectData(*Dataset::Open(folder / "out", {}), SmolLm(), {});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("rows        2 read; left out: 1 malformed\n"));
}

TEST(Preview, ShowsTokensAndWhatCounts) {
  const TestFolder folder;
  PrepareOptions options = Options(folder, Chat("a|", "b\x1b"));
  options.rows->loss = LossOn::kCompletions;
  ASSERT_TRUE(Prepare(options).ok());
  const auto data = Dataset::Open(folder / "out", {});
  const auto text = PreviewData(*data, SmolLm(), {.sequence_length = 300});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("\n  counts | b|\\x1b|<|im_end|>\n"));
  EXPECT_THAT(*text, HasSubstr("<|im_start|>|"));
  EXPECT_THAT(*text, HasSubstr("a|\\||<|im_end|>|\\n\n"));
  EXPECT_THAT(*text, HasSubstr("that fill the row"));
  EXPECT_THAT(*text, Not(HasSubstr("\x1b")));
  const auto coloured = PreviewData(*data, SmolLm(), {.sequence_length = 300, .colour = true});
  EXPECT_THAT(*coloured, HasSubstr("\x1b[32mb|\\x1b|\x1b[1m<|im_end|>\x1b[0m"));
}

TEST(Preview, ShowsWhereDocumentsOfATextEnd) {
  const TestFolder folder;
  PrepareOptions options{
      .inputs = {folder.Write("a.txt", "one"), folder.Write("b.txt", "two four")},
      .output = folder / "out",
      .split_by = SplitBy::kNone};
  ASSERT_TRUE(PrepareData(PosixFileSystem(), *MakeByteTokenizer(), options).ok());
  const auto data = Dataset::Open(folder / "out", {});
  const auto text = PreviewData(*data, *MakeByteTokenizer(), {.rows = 1, .sequence_length = 8});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("<|endoftext|>\n  -- a document ends\n  counts | t|w|o"));
  EXPECT_EQ(
      PreviewData(*data, *MakeByteTokenizer(), {.first = 5, .sequence_length = 8}).status().code(),
      absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace espalier
