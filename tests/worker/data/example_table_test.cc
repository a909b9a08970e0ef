#include "worker/data/example_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "common/base/random.h"
#include "worker/data/prefetch.h"

namespace espalier {
namespace {

constexpr char kEnd = '|';  // the end-of-text token; letters are the others

struct Texts {
  std::string prompt;
  std::string completion;
};

absl::StatusOr<ExampleTable> Table(int64_t length, const std::vector<Texts>& examples) {
  std::vector<int64_t> tokens;
  std::vector<ExampleSpan> spans;
  for (const Texts& example : examples) {
    const auto begin = static_cast<int64_t>(tokens.size());
    const std::string text = example.prompt + example.completion + kEnd;
    tokens.insert(tokens.end(), text.begin(), text.end());
    spans.push_back({begin, begin + static_cast<int64_t>(example.prompt.size()),
                     static_cast<int64_t>(tokens.size())});
  }
  return ExampleTable::Create(std::make_shared<VectorTokenRow>(std::move(tokens)),
                              std::make_shared<VectorExampleIndex>(std::move(spans)),
                              {.sequence_length = length, .end_of_text = kEnd});
}

struct RowCase {
  const char* name;
  int64_t length;
  Texts example;
  const char* tokens;
  const char* counted;  // of targets: one shorter than the tokens
  int64_t prompts_cut;
  int64_t completions_cut;
};

class ExampleRow : public testing::TestWithParam<RowCase> {};

TEST_P(ExampleRow, CountsTheCompletionAndItsEnd) {
  const RowCase& wanted = GetParam();
  const auto table = Table(wanted.length, {wanted.example});
  ASSERT_TRUE(table.ok()) << table.status();
  const auto row = table->Read({0});
  ASSERT_TRUE(row.ok()) << row.status();
  std::string counted;
  for (uint8_t c : row->counted) counted += static_cast<char>('0' + c);
  EXPECT_EQ(std::string(row->tokens.begin(), row->tokens.end()), wanted.tokens);
  EXPECT_EQ(counted, wanted.counted);
  EXPECT_EQ(table->summary().prompts_cut, wanted.prompts_cut);
  EXPECT_EQ(table->summary().completions_cut, wanted.completions_cut);
  EXPECT_EQ(table->summary().loss_tokens, row->LossTokens({0, 1}));
}

INSTANTIATE_TEST_SUITE_P(
    ExampleTable, ExampleRow,
    testing::ValuesIn<RowCase>({
        {"IsPadded", 8, {"ab", "XY"}, "abXY|||||", "01110000", 0, 0},
        {"FitsExactly", 4, {"ab", "XY"}, "abXY|", "0111", 0, 0},
        {"LosesTheFrontOfItsPrompt", 4, {"abcdef", "XY"}, "efXY|", "0111", 1, 0},
        {"KeepsACompletionOfTheWholeLength", 4, {"c", "UVW"}, "cUVW|", "1111", 0, 0},
        {"KeepsOnlyTheLastOfThePrompt", 4, {"bc", "UVW"}, "cUVW|", "1111", 1, 0},
        {"LosesOnlyTheEndToken", 4, {"c", "UVWX"}, "cUVWX", "1111", 0, 1},
        {"LosesTheEndOfItsCompletion", 4, {"abc", "UVWXYZ"}, "cUVWX", "1111", 1, 1},
        {"WithoutPromptBeginsWithEndOfText", 4, {"", "XY"}, "|XY||", "1110", 0, 0},
        {"WithoutPromptLosesTheEnd", 4, {"", "VWXYZ"}, "|VWXY", "1111", 0, 1},
        {"OfOneToken", 1, {"ab", "X"}, "bX", "1", 1, 1},
    }),
    [](const auto& info) { return info.param.name; });

TEST(ExampleTable, LossTokensAreThoseOfTheRowsAskedFor) {
  const auto table = Table(6, {{"a", "X"}, {"abc", "XYZ"}, {"", "X"}});
  const auto samples = table->Read({2, 1, 0, 1});
  ASSERT_TRUE(samples.ok());
  EXPECT_EQ(samples->sequence_length(), 6);
  EXPECT_EQ(samples->LossTokens({0, 4}), 2 + 4 + 2 + 4);
  EXPECT_EQ(samples->LossTokens({1, 2}), 4);
  EXPECT_EQ(samples->LossTokens({3, 3}), 0);
  EXPECT_EQ(table->Read({})->LossTokens({0, 0}), 0);
}

std::string Letters(SplitMix64& random, uint64_t most, char first) {
  std::string text(random.Below(most + 1), ' ');
  for (char& c : text) c = static_cast<char>(first + random.Below(26));
  return text;
}

// Whatever the lengths: as much of the completion as fits counts, in its place behind the prompt's
// last token, and nothing else.
TEST(ExampleTable, CountsAsMuchOfEveryCompletionAsFits) {
  SplitMix64 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<Texts> examples(1 + random.Below(8));
    for (Texts& example : examples) {
      example = {Letters(random, 20, 'a'), Letters(random, 20, 'A') + "Z"};
    }
    const auto length = static_cast<int64_t>(1 + random.Below(24));
    const auto table = Table(length, examples);
    ASSERT_TRUE(table.ok()) << table.status();
    int64_t loss_tokens = 0;
    for (int64_t i = 0; i < table->size(); ++i) {
      const Samples row = *table->Read({i});
      std::string counted;
      for (int64_t t = 0; t < length; ++t) {
        if (row.counted[t]) counted += static_cast<char>(row.tokens[t + 1]);
      }
      const int64_t first =
          std::find(row.counted.begin(), row.counted.end(), 1) - row.counted.begin();
      const Texts& example = examples[i];
      EXPECT_EQ(counted, (example.completion + kEnd).substr(0, length));
      EXPECT_EQ(row.tokens[first], example.prompt.empty() ? kEnd : example.prompt.back());
      loss_tokens += row.LossTokens({0, 1});
    }
    EXPECT_EQ(table->summary().loss_tokens, loss_tokens);
  }
}

TEST(ExampleTable, WarnsOfWhatTheLengthCutsAndSaysWhichWouldNot) {
  const std::vector<Texts> examples = {{"abcdef", "XY"}, {"", "UVWXYZ"}, {"a", "X"}};
  const auto cut = Table(4, examples);
  EXPECT_EQ(cut->summary().Warning(4),
            "data.sequence_length 4 cuts examples: of 3, 1 lose the front of their prompt and 1 "
            "the end of their completion; the longest has 9 tokens, which a length of 8 holds");
  EXPECT_EQ(Table(8, examples)->summary().Warning(8), "");
}

TEST(ExampleTable, AnIndexThatIsNotOneExampleAfterTheOtherIsRefused) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const std::vector<std::vector<ExampleSpan>> bad = {
      {},                                // tokens that belong to no example
      {{0, 1, 5}},                       // as well
      {{0, 1, 11}},                      // beyond the row
      {{0, 1, kHuge}},                   //
      {{0, -1, 10}},                     // before it
      {{0, kHuge, 10}},                  //
      {{0, 5, 5}, {5, 6, 10}},           // no completion
      {{0, 5, 4}, {4, 6, 10}},           // backwards
      {{0, 1, 5}, {6, 7, 10}},           // a gap
      {{0, 1, 5}, {4, 7, 10}},           // an overlap
      {{0, 1, 5}, {5, 4, 10}},           // a completion that begins in the example before
      {{0, 1, 10}, {10, 10, 10}},        // an empty example
      {{0, 1, 10}, {10, -kHuge, kHuge}}  //
  };
  const auto row = std::make_shared<VectorTokenRow>(std::vector<int64_t>(10, 'a'));
  for (size_t i = 0; i < bad.size(); ++i) {
    const absl::Status status =
        ExampleTable::Create(row, std::make_shared<VectorExampleIndex>(bad[i]),
                             {.sequence_length = 4, .end_of_text = kEnd})
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << i << ": " << status;
  }
}

TEST(ExampleTable, OutsideTheTableIsAnError) {
  const auto table = Table(4, {{"a", "X"}});
  EXPECT_EQ(table->Read({1}).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(table->Read({0, -1}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(ExampleTable, GoesThroughTheOrderAndThePrefetcherAsTextDoes) {
  std::vector<Texts> examples;
  for (int i = 0; i < 25; ++i) examples.push_back({std::string(i, 'a'), std::string(25 - i, 'X')});
  const auto table = std::make_shared<ExampleTable>(*Table(16, examples));
  const SampleOrder order =
      *SampleOrder::Create({.samples = table->size(), .global_batch = 8, .seed = 3});
  DirectSamples direct(table, order);
  PrefetchedSamples prefetched(table, order, {.threads = 2});
  for (int64_t step = 0; step < 20; ++step) {
    const auto a = *direct.Fetch(Step(step), {1, 7}), b = *prefetched.Fetch(Step(step), {1, 7});
    EXPECT_EQ(a->ids, order.SamplesOfStep(Step(step), {1, 7}));
    EXPECT_EQ(a->ids, b->ids);
    EXPECT_EQ(a->tokens, b->tokens);
    EXPECT_EQ(a->counted, b->counted);
  }
}

}  // namespace
}  // namespace espalier
