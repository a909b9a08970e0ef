// Examples that share rows: each whole in one row, with what counts of it, and used once an epoch
// by every division and after every restart.
#include "worker/data/packed_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "common/base/random.h"
#include "tests/worker/support/test_folder.h"
#include "worker/data/dataset.h"
#include "worker/data/prefetch.h"
#include "worker/data/prepare.h"

namespace espalier {
namespace {

constexpr int64_t kEnd = 999, kLength = 32;

// Examples of 2 to about 60 tokens, short ones mostly; no two begin alike.
std::shared_ptr<const ExampleTable> Pairs(int64_t count) {
  SplitMix64 random(8);
  std::vector<int64_t> tokens;
  std::vector<ExampleSpan> spans;
  for (int64_t i = 0; i < count; ++i) {
    const auto begin = static_cast<int64_t>(tokens.size());
    const auto prompt = static_cast<int64_t>(random.Below(5) * random.Below(9));
    const auto completion = static_cast<int64_t>(random.Below(4) * random.Below(9));
    for (int64_t t = 0; t < prompt + completion; ++t) tokens.push_back((i * 31 + t) % 900);
    tokens.push_back(kEnd);
    spans.push_back({begin, begin + prompt, static_cast<int64_t>(tokens.size())});
  }
  return std::make_shared<ExampleTable>(
      *ExampleTable::Create(std::make_shared<VectorTokenRow>(std::move(tokens)),
                            std::make_shared<VectorExampleIndex>(std::move(spans)),
                            {.sequence_length = kLength, .end_of_text = kEnd}));
}

// Conversations: every third token counts.
std::shared_ptr<const MaskedTable> Masked(int64_t count) {
  SplitMix64 random(9);
  std::vector<int64_t> tokens;
  std::vector<MaskedSpan> spans;
  std::vector<TokenRun> runs;
  for (int64_t i = 0; i < count; ++i) {
    MaskedSpan span{.begin = static_cast<int64_t>(tokens.size()),
                    .runs_begin = static_cast<int64_t>(runs.size())};
    const auto length = static_cast<int64_t>(1 + random.Below(6) * random.Below(9));
    for (int64_t t = 0; t < length; ++t) tokens.push_back((i * 31 + t) % 900);
    for (int64_t t = 0; t < length; t += 3) runs.push_back({span.begin + t, span.begin + t + 1});
    span.end = static_cast<int64_t>(tokens.size());
    span.runs_end = static_cast<int64_t>(runs.size());
    spans.push_back(span);
  }
  return std::make_shared<MaskedTable>(
      *MaskedTable::Create(std::make_shared<VectorTokenRow>(std::move(tokens)),
                           std::make_shared<VectorMaskedIndex>(std::move(spans), std::move(runs)),
                           {.sequence_length = kLength, .end_of_text = kEnd}));
}

std::vector<std::shared_ptr<const ExampleRows>> Tables() { return {Pairs(500), Masked(500)}; }

std::vector<int64_t> Numbers(int64_t count) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

// The example alone in its row has the same tokens, and the same of them count.
void ExpectWhole(const ExampleRows& examples, const RowPart& part, const int64_t* tokens,
                 const uint8_t* counted) {
  const Samples alone = *examples.Read({part.id});
  const int64_t length = examples.Length(part.id);
  ASSERT_EQ(part.end - part.begin, length);
  ASSERT_TRUE(std::equal(tokens + part.begin, tokens + part.end, alone.tokens.begin())) << part.id;
  ASSERT_TRUE(std::equal(counted + part.begin, counted + part.end - 1, alone.counted.begin()))
      << part.id;
  if (part.end <= kLength) {
    ASSERT_EQ(counted[part.end - 1], 0) << "the next example is no target";
  }
}

TEST(PackedTable, HasEveryExampleWholeInOneRow) {
  for (const auto& examples : Tables()) {
    const PackedTable table(examples, 5);
    const Samples rows = *table.Read(Numbers(table.size()));
    std::vector<int64_t> used;
    for (int64_t row = 0; row < table.size(); ++row) {
      int64_t column = 0;
      for (const RowPart& part : rows.parts[static_cast<size_t>(row)]) {
        ASSERT_EQ(part.begin, column);
        column = part.end;
        ExpectWhole(*examples, part, rows.tokens.data() + row * (kLength + 1),
                    rows.counted.data() + row * kLength);
        used.push_back(part.id);
      }
      ASSERT_LE(column, kLength + 1);
      EXPECT_EQ(table.Length(row), column);
      for (; column <= kLength; ++column) {
        ASSERT_EQ(rows.tokens[static_cast<size_t>(row * (kLength + 1) + column)], kEnd);
      }
    }
    EXPECT_EQ(rows.UsedIds(), used);
    std::sort(used.begin(), used.end());
    EXPECT_EQ(used, Numbers(examples->size()));
    const Samples apart = *examples->Read(Numbers(examples->size()));
    EXPECT_EQ(rows.LossTokens({0, rows.rows()}), apart.LossTokens({0, apart.rows()}));
    EXPECT_GT(table.fill(), 0.9);
  }
}

TEST(PackedTable, FollowsFromDataAndSeed) {
  const auto examples = Pairs(300);
  const PackedTable table(examples, 5), same(examples, 5), other(examples, 6);
  const std::vector<int64_t> rows = Numbers(table.size());
  EXPECT_EQ(table.Read(rows)->UsedIds(), same.Read(rows)->UsedIds());
  EXPECT_EQ(other.size(), table.size()) << "epochs do not depend on the seed";
  EXPECT_NE(table.Read(rows)->UsedIds(), other.Read(rows)->UsedIds());
  // Recorded: a change of these numbers changes what every resumed run trains on.
  EXPECT_EQ(table.Read({40})->UsedIds(), (std::vector<int64_t>{274, 204}));
}

TEST(PackedTable, OutsideTheTableIsAnError) {
  const PackedTable table(Pairs(10), 5);
  EXPECT_EQ(table.Read({table.size()}).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(table.Read({-1}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(PackedTable, SortedRowsKeepTheirExamples) {
  const PackedTable table(Pairs(60), 5);
  const Samples rows = *table.Read(Numbers(table.size())), sorted = LongestFirst(rows);
  std::map<int64_t, std::vector<int64_t>> of_row;
  for (int64_t i = 0; i < rows.rows(); ++i) {
    for (const RowPart& part : rows.parts[i]) of_row[rows.ids[i]].push_back(part.id);
  }
  EXPECT_NE(sorted.ids, rows.ids);
  for (int64_t i = 0; i < sorted.rows(); ++i) {
    std::vector<int64_t> ids;
    for (const RowPart& part : sorted.parts[i]) ids.push_back(part.id);
    EXPECT_EQ(ids, of_row[sorted.ids[i]]);
  }
}

// Whatever ends an epoch; from any step on, and however the slots are divided.
TEST(PackedTable, EveryExampleIsUsedOnceAnEpoch) {
  const auto table = std::make_shared<const PackedTable>(Pairs(333), 5);
  const int64_t of_epoch = (table->size() + 7) / 8;
  for (const bool whole : {false, true}) {
    const SampleOrder order = *SampleOrder::Create(
        {.samples = table->size(), .global_batch = 8, .seed = 3, .whole_epochs = whole});
    DirectSamples undisturbed(table, order);
    PrefetchedSamples resumed(table, order, {.threads = 2});
    std::map<int64_t, int> uses;
    int64_t rows = 0;
    for (int64_t step = 0; rows < 2 * table->size(); ++step) {
      for (const SlotRange range : {SlotRange{0, 3}, SlotRange{3, 8}}) {
        const auto samples = *undisturbed.Fetch(Step(step), range);
        if (step >= of_epoch / 2) {  // where the other one begins
          EXPECT_EQ((*resumed.Fetch(Step(step), range))->UsedIds(), samples->UsedIds());
        }
        for (const std::vector<RowPart>& row : samples->parts) {
          if (rows++ >= 2 * table->size()) break;  // of the third epoch
          for (const RowPart& part : row) ++uses[part.id];
        }
      }
    }
    EXPECT_EQ(uses.size(), 333u);
    for (const auto& [id, times] : uses) EXPECT_EQ(times, 2) << id;
  }
}

TEST(PackedTable, RowsOfAFolderAreCountedBeforeItIsTrainedOn) {
  const TestFolder folder;
  for (const bool conversations : {false, true}) {
    std::string rows;
    for (int i = 0; i < 90; ++i) {
      const std::string asked(static_cast<size_t>(i * 7 % 23), 'a'), said(1 + i % 5, 'b');
      rows += conversations ? "{\"text\": \"" + asked + said + "\"}\n"
                            : "{\"prompt\": \"" + asked + "\", \"completion\": \"" + said + "\"}\n";
    }
    const std::string name = conversations ? "texts" : "pairs";
    std::ofstream(folder / (name + ".jsonl")) << rows;
    PrepareOptions options{.inputs = {folder / (name + ".jsonl")}, .output = folder / name};
    options.rows = RowOptions{};
    options.split_by = SplitBy::kNone;
    const auto prepared = PrepareData(PosixFileSystem(), *MakeByteTokenizer(), options);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    const auto dataset = Dataset::Open(folder / name, {});
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    std::shared_ptr<const ExampleRows> examples;
    if (conversations) {
      examples = *dataset->Masked(kTrainSplit, kLength);
    } else {
      examples = *dataset->Examples(kTrainSplit, kLength);
    }
    const PackedTable table(examples, 5);
    EXPECT_EQ(*CountTrainingSamples(folder / name, {kLength, true}), table.size());
    EXPECT_EQ(*CountTrainingSamples(folder / name, {kLength, false}), 90);
    EXPECT_LT(table.size(), 50);
    EXPECT_TRUE(absl::StrContains(table.Summary(), "90 examples share")) << table.Summary();
  }
}

}  // namespace
}  // namespace espalier
