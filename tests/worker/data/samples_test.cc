#include "worker/data/samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "worker/data/prefetch.h"

namespace espalier {
namespace {

constexpr int64_t kLength = 4;

std::shared_ptr<const TokenRow> CountingRow(int64_t tokens) {
  std::vector<int64_t> row(tokens);
  std::iota(row.begin(), row.end(), 0);
  return std::make_shared<VectorTokenRow>(std::move(row));
}

SampleOrder Order(int64_t samples, int64_t batch) {
  return *SampleOrder::Create({.samples = samples, .global_batch = batch, .seed = 3});
}

TEST(Samples, AWindowNeedsOneTokenMoreThanItsLength) {
  EXPECT_EQ(WindowTable::Count(0, kLength), 0);
  EXPECT_EQ(WindowTable::Count(4, kLength), 0);
  EXPECT_EQ(WindowTable::Count(5, kLength), 1);
  EXPECT_EQ(WindowTable::Count(8, kLength), 1);
  EXPECT_EQ(WindowTable::Count(9, kLength), 2);
}

TEST(Samples, WindowsOverlapByTheOneTokenThatIsOnlyATarget) {
  const auto samples = WindowTable(CountingRow(9), kLength).Read({1, 0});
  ASSERT_TRUE(samples.ok());
  EXPECT_EQ(samples->rows(), 2);
  EXPECT_EQ(samples->tokens, (std::vector<int64_t>{4, 5, 6, 7, 8, 0, 1, 2, 3, 4}));
  EXPECT_EQ(samples->LossTokens({0, 2}), 2 * kLength);
  EXPECT_EQ(samples->LossTokens({1, 1}), 0);
}

TEST(Samples, OutsideTheRowIsAnError) {
  const WindowTable table(CountingRow(9), kLength);
  EXPECT_EQ(table.Read({2}).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_FALSE(table.Read({-1}).ok());
  EXPECT_FALSE(WindowTable(CountingRow(2), kLength).Read({0}).ok());
}

// The same calls on every implementation and number of threads.
class SampleSourceTest : public testing::TestWithParam<int> {
 protected:
  static std::unique_ptr<SampleSource> Make(std::shared_ptr<const TokenRow> row,
                                            SampleOrder order) {
    auto table = std::make_shared<WindowTable>(std::move(row), kLength);
    if (GetParam() == 0) return std::make_unique<DirectSamples>(table, order);
    return std::make_unique<PrefetchedSamples>(
        table, order,
        PrefetchedSamples::Options{.depth_steps = 1 + GetParam(), .threads = GetParam()});
  }
};

void ExpectSamples(SampleSource& source, const SampleOrder& order, int64_t step, SlotRange range) {
  const auto got = source.Fetch(Step(step), range);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ((*got)->ids, order.SamplesOfStep(Step(step), range)) << "step " << step;
  for (int64_t row = 0; row < (*got)->rows(); ++row) {
    EXPECT_EQ((*got)->tokens[row * (kLength + 1)], (*got)->ids[row] * kLength);
  }
}

TEST_P(SampleSourceTest, GivesTheSamplesOfTheOrder) {
  const SampleOrder order = Order(25, 8);
  const auto source = Make(CountingRow(101), order);
  for (int64_t step = 0; step < 50; ++step) ExpectSamples(*source, order, step, {0, 8});
}

TEST_P(SampleSourceTest, FollowsChangesOfPlanAndJumps) {
  const SampleOrder order = Order(25, 8);
  const auto source = Make(CountingRow(101), order);
  for (int64_t step : {0, 1, 2}) ExpectSamples(*source, order, step, {0, 4});
  for (int64_t step : {3, 4, 5}) ExpectSamples(*source, order, step, {2, 8});  // a new plan
  for (int64_t step : {6, 7}) ExpectSamples(*source, order, step, {3, 3});     // nothing to do
  for (int64_t step : {100, 101, 101, 90, 0}) ExpectSamples(*source, order, step, {2, 8});
}

TEST_P(SampleSourceTest, ResultsOutliveTheSource) {
  const SampleOrder order = Order(25, 8);
  auto source = Make(CountingRow(101), order);
  const auto first = source->Fetch(Step(0), {0, 8});
  for (int64_t step = 1; step < 9; ++step) ASSERT_TRUE(source->Fetch(Step(step), {0, 8}).ok());
  source.reset();
  EXPECT_EQ((*first)->ids, order.SamplesOfStep(Step(0), {0, 8}));
}

class BrokenRow : public TokenRow {
 public:
  int64_t size() const override { return 101; }
  absl::Status Copy(int64_t, absl::Span<int64_t>) const override {
    return absl::DataLossError("shard is damaged");
  }
};

TEST_P(SampleSourceTest, PassesErrorsOn) {
  const auto source = Make(std::make_shared<BrokenRow>(), Order(25, 8));
  for (int64_t step : {0, 1, 2}) {
    EXPECT_EQ(source->Fetch(Step(step), {0, 8}).status().code(), absl::StatusCode::kDataLoss);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, SampleSourceTest, testing::Values(0, 1, 2, 5),
                         [](const auto& info) { return absl::StrCat(info.param); });

// Counts reads, so that the bound of the buffer can be seen.
class GatedRow : public TokenRow {
 public:
  int64_t size() const override { return 1000001; }
  absl::Status Copy(int64_t, absl::Span<int64_t> out) const override {
    if (++reads_ == 4) third_step_read_.Notify();
    std::fill(out.begin(), out.end(), 0);
    return absl::OkStatus();
  }
  mutable std::atomic<int> reads_ = 0;
  mutable absl::Notification third_step_read_;
};

TEST(PrefetchedSamples, ReadsAheadButNeverFurtherThanItsDepth) {
  const auto row = std::make_shared<GatedRow>();
  PrefetchedSamples source(std::make_shared<WindowTable>(row, kLength), Order(1000, 1),
                           {.depth_steps = 3, .threads = 2});
  ASSERT_TRUE(source.Fetch(Step(0), {0, 1}).ok());
  row->third_step_read_.WaitForNotification();  // steps 1 to 3 are read without being asked for
  EXPECT_EQ(source.held(), 3);
  EXPECT_EQ(row->reads_, 4);
}

class ThrowingTable : public SampleTable {
 public:
  int64_t size() const override { return 100; }
  int64_t sequence_length() const override { return kLength; }
  int64_t Length(int64_t) const override { return kLength + 1; }
  absl::StatusOr<Samples> Read(std::vector<int64_t>) const override { throw std::bad_alloc(); }
};

TEST(PrefetchedSamples, MemoryThatRunsOutOnItsThreadIsAnErrorOfTheStep) {
  PrefetchedSamples source(std::make_shared<ThrowingTable>(), Order(100, 1), {});
  const auto got = source.Fetch(Step(0), {0, 1});
  EXPECT_TRUE(absl::IsResourceExhausted(got.status())) << got.status();
}

TEST(Samples, CountAsFarAsTheLastTargetThatCounts) {
  const Samples samples{.ids = {7, 8, 9},
                        .tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
                        .counted = {1, 0, 0, 0, 0, 0, 0, 1, 0}};
  EXPECT_EQ(samples.CountedColumns({0, 1}), 1);
  EXPECT_EQ(samples.CountedColumns({1, 2}), 0);
  EXPECT_EQ(samples.CountedColumns({0, 3}), 2);
  const Samples text{.ids = {1}, .tokens = {1, 2, 3}, .counted = {}};
  EXPECT_EQ(text.CountedColumns({0, 1}), 2);
}

TEST(Samples, LongestFirstMovesWholeRows) {
  const std::vector<float> numbers(3);
  const auto number = [&](size_t row) { return absl::MakeConstSpan(numbers).subspan(row, 1); };
  const Samples sorted = LongestFirst({.ids = {7, 8, 9},
                                       .tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9},
                                       .counted = {1, 0, 0, 0, 0, 1},
                                       .slots = {3, 4, 5},
                                       .carried = {number(0), number(1), number(2)}});
  EXPECT_EQ(sorted.ids, (std::vector<int64_t>{9, 7, 8}));
  EXPECT_EQ(sorted.tokens, (std::vector<int64_t>{7, 8, 9, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(sorted.counted, (std::vector<uint8_t>{0, 1, 1, 0, 0, 0}));
  EXPECT_EQ(sorted.slots, (std::vector<int64_t>{5, 3, 4}));
  ASSERT_EQ(sorted.carried.size(), 3U);
  EXPECT_EQ(sorted.carried[0].data(), &numbers[2]);
  EXPECT_EQ(sorted.carried[2].data(), &numbers[1]);
}

}  // namespace
}  // namespace espalier
