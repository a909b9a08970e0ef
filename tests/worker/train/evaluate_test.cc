// An evaluation is divided as a step is, and running out of memory makes its passes smaller;
// neither changes what it finds, on any rank.
#include "worker/train/evaluate.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "tests/worker/support/failing_allocator.h"
#include "tests/worker/support/tiny_model.h"
#include "tests/worker/support/tiny_trm.h"
#include "worker/collective/in_process.h"
#include "worker/task/deep_supervision.h"
#include "worker/task/next_token.h"

namespace espalier {
namespace {

constexpr int64_t kTime = 6, kSequences = 7, kMicroBatch = 3;

std::shared_ptr<WindowTable> Text() {
  std::vector<int64_t> tokens(kSequences * kTime + 1);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i * i + 3 * i) % 23;
  return std::make_shared<WindowTable>(std::make_shared<VectorTokenRow>(std::move(tokens)), kTime);
}

struct Found {
  absl::StatusOr<Evaluation> evaluation = absl::UnknownError("did not run");
  bool failed = false;  // the allocation was made
  int freed = 0;
};

// Two ranks, of which the second one fails an allocation; what each found.
std::vector<Found> EvaluateWith(int64_t failing) {
  std::vector<std::unique_ptr<Collective>> group = InProcessGroup(2, absl::Seconds(60));
  const NextToken task(Text(), Text());
  std::vector<Found> found(2);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      TinyModel model(TinyModelConfig());
      ProgressBoard board;
      Evaluator evaluator({*group[rank], RealClock(), board}, *model.decoder, task, {});
      Found& mine = found[rank];
      const auto run = [&] {
        const auto found =
            evaluator.Run({.micro_batch = kMicroBatch, .free_memory = [&] { ++mine.freed; }});
        if (found.ok() && *found) mine.evaluation = **found;
        if (!found.ok()) mine.evaluation = found.status();
      };
      if (rank == 0 || failing == 0) return run();
      const FailingAllocator allocator(failing);
      run();
      mine.failed = FailingAllocator::failed();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return found;
}

TEST(Evaluator, AFailureAtAnyAllocationChangesNothing) {
  const Evaluation expected = EvaluateWith(0)[0].evaluation.value();
  EXPECT_EQ(expected.tokens, kSequences * kTime);
  int64_t n = 1;
  for (bool failed = true; failed; ++n) {
    const std::vector<Found> found = EvaluateWith(n);
    failed = found[1].failed;
    for (const Found& each : found) {
      ASSERT_TRUE(each.evaluation.ok()) << n << ": " << each.evaluation.status();
      EXPECT_NEAR(each.evaluation->loss, expected.loss, 1e-6) << n;
      EXPECT_EQ(each.evaluation->tokens, expected.tokens) << n;
    }
    EXPECT_EQ(found[0].freed, 0);
    EXPECT_EQ(found[1].freed, failed ? 1 : 0) << n;
  }
  EXPECT_GT(n, 20) << "a pass must allocate";
}

// The text, and how many samples were read at a time.
class NotedTable : public SampleTable {
 public:
  int64_t size() const override { return table_->size(); }
  int64_t sequence_length() const override { return table_->sequence_length(); }
  int64_t Length(int64_t id) const override { return table_->Length(id); }
  absl::StatusOr<Samples> Read(std::vector<int64_t> ids) const override {
    passes_.push_back(ids.size());
    return table_->Read(std::move(ids));
  }
  const std::vector<size_t>& passes() const { return passes_; }

 private:
  const std::shared_ptr<WindowTable> table_ = Text();
  mutable std::vector<size_t> passes_;  // of one rank's thread
};

struct Divided {
  double loss = 0;
  std::vector<std::vector<size_t>> passes;  // by rank
};

// `micro_batch`: what the memory of each rank allows.
Divided EvaluateDivided(const std::vector<int64_t>& sequences,
                        const std::vector<int64_t>& micro_batch, bool reproducible = false) {
  const size_t ranks = micro_batch.size();
  std::vector<std::unique_ptr<Collective>> group =
      InProcessGroup(static_cast<int>(ranks), absl::Seconds(60));
  Divided divided;
  divided.passes.resize(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      TinyModel model(TinyModelConfig());
      ProgressBoard board;
      const auto table = std::make_shared<NotedTable>();
      const NextToken task(table, table);
      Evaluator evaluator({*group[rank], RealClock(), board}, *model.decoder, task,
                          {.reproducible = reproducible});
      const auto found = evaluator.Run({.micro_batch = micro_batch[rank], .sequences = sequences});
      divided.passes[rank] = table->passes();
      if (rank == 0 && found.ok() && *found) divided.loss = (*found)->loss;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return divided;
}

using Passes = std::vector<std::vector<size_t>>;

TEST(Evaluator, ARankThatComputesTwiceAsMuchHasPassesOfTwiceTheSize) {
  const Divided alone = EvaluateDivided({}, {kSequences});
  const Divided even = EvaluateDivided({}, {2, 2});
  const Divided uneven = EvaluateDivided({8, 4}, {2, 2});
  EXPECT_EQ(alone.passes, (Passes{{7}}));
  EXPECT_EQ(even.passes, (Passes{{2, 2}, {2, 1}}));
  EXPECT_EQ(uneven.passes, (Passes{{2, 2, 1}, {1, 1}}));
  EXPECT_NEAR(even.loss, alone.loss, 1e-6);
  EXPECT_NEAR(uneven.loss, alone.loss, 1e-6);
}

TEST(Evaluator, PassesFitTheRankWithTheLeastMemoryForItsPartAndOneWithoutAPartHasNone) {
  EXPECT_EQ(EvaluateDivided({8, 4}, {4, 1}).passes, (Passes{{2, 2, 1}, {1, 1}}));
  EXPECT_EQ(EvaluateDivided({12, 0}, {3, 1}).passes, (Passes{{3, 3, 1}, {}}));
}

TEST(Evaluator, AReproducibleLossDoesNotDependOnTheDivision) {
  const Divided alone = EvaluateDivided({}, {3}, /*reproducible=*/true);
  const Divided uneven = EvaluateDivided({8, 4}, {2, 2}, /*reproducible=*/true);
  EXPECT_EQ(uneven.passes, (Passes{{1, 1, 1, 1, 1}, {1, 1}}));
  EXPECT_EQ(uneven.loss, alone.loss);
}

// A row whose last token is what a recursive model says there, and one of which nothing counts.
class OneThatCounts : public SampleTable {
 public:
  explicit OneThatCounts(const RecursiveModel& model) {
    torch::NoGradGuard no_grad;
    for (int64_t i = 0; i < kTime; ++i) tokens_.push_back(3 * i + 1);
    const torch::Tensor ids = torch::tensor(tokens_).unsqueeze(0);
    RecursiveModel::State state = model.Begin(1, kTime);
    for (int64_t step = 0; step < model.recursion().halt_max_steps; ++step) {
      state = model.Think(ids, state);
    }
    tokens_.push_back(model.Logits(state.high)[0][-1].argmax().item<int64_t>());
  }
  int64_t size() const override { return 2; }
  int64_t sequence_length() const override { return kTime; }
  int64_t Length(int64_t) const override { return kTime + 1; }
  absl::StatusOr<Samples> Read(std::vector<int64_t> ids) const override {
    Samples samples{.ids = ids};
    for (const int64_t id : ids) {
      samples.tokens.insert(samples.tokens.end(), tokens_.begin(), tokens_.end());
      samples.counted.insert(samples.counted.end(), kTime, 0);
      samples.counted.back() = id == 0 ? 1 : 0;
    }
    return samples;
  }

 private:
  std::vector<int64_t> tokens_;
};

// Of each rank.
std::vector<Evaluation> EvaluateOneThatCounts(int ranks) {
  const TinyTrm tiny(TinyTrmConfig(/*causal=*/true));
  const auto table = std::make_shared<OneThatCounts>(*tiny.model);
  const DeepSupervision task(DeepSupervision::Kind::kText, kTime, table, table, /*seed=*/1);
  std::vector<std::unique_ptr<Collective>> group = InProcessGroup(ranks, absl::Seconds(60));
  std::vector<Evaluation> found(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < found.size(); ++rank) {
    threads.emplace_back([&, rank] {
      ProgressBoard board;
      Evaluator evaluator({*group[rank], RealClock(), board}, *tiny.model, task, {});
      const auto evaluation = evaluator.Run({.micro_batch = 2});
      EXPECT_TRUE(evaluation.ok()) << evaluation.status();
      if (evaluation.ok() && *evaluation) found[rank] = **evaluation;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return found;
}

TEST(Evaluator, FiguresAreMeansOverWhatCountsInThem) {
  for (const int ranks : {1, 2}) {
    for (const Evaluation& found : EvaluateOneThatCounts(ranks)) {
      EXPECT_EQ(found.tokens, 2) << "the loss is of all samples";
      ASSERT_EQ(found.figures.size(), 4u);
      EXPECT_EQ(found.figures[0].name, "accuracy");
      EXPECT_EQ(found.figures[0].value, 1) << ranks << " ranks";
      EXPECT_EQ(found.figures[1].value, 1) << "exact";
      EXPECT_NEAR(found.figures[3].value, 5, 0.1) << "it holds nothing for right: a logit of -5";
    }
  }
}

// A second passes at every look at it.
class TickingClock final : public Clock {
 public:
  absl::Time Now() override { return absl::UnixEpoch() + now_; }
  absl::Duration Monotonic() override { return now_ += absl::Seconds(1); }
  void Sleep(absl::Duration duration) override { now_ += duration; }

 private:
  absl::Duration now_;
};

// Of a test in so many parts.
class PartedPractice final : public Practice {
 public:
  explicit PartedPractice(int parts) : parts_(parts) {}
  absl::StatusOr<bool> Prepare(Step, const Model&, const RolloutAround&, SlotStates&) override {
    return true;
  }
  absl::StatusOr<std::optional<Findings>> Evaluate(const Model&,
                                                   const RolloutAround& around) override {
    if (!around.in_one_go && ++made_ % parts_ != 0) return std::nullopt;
    return Findings{.loss = 1, .answers = 3, .figures = {}};
  }

 private:
  const int parts_;
  int made_ = 0;
};

TEST(Evaluator, TheTimeOfAllPartsIsThatOfTheEvaluation) {
  const std::vector<std::unique_ptr<Collective>> world = InProcessGroup(1, absl::Seconds(60));
  const TinyModel model(TinyModelConfig());
  const NextToken task(Text(), Text());
  ProgressBoard board;
  TickingClock clock;
  PartedPractice practice(3);
  Evaluator evaluator({*world[0], clock, board}, *model.decoder, task, {.practice = &practice});
  for (const int64_t step : {4, 8}) {
    EXPECT_FALSE(evaluator.Run({.step = step})->has_value());
    EXPECT_FALSE(evaluator.Run({.step = step})->has_value());
    const auto found = *evaluator.Run({.step = step});
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->seconds, 3);
  }
  EXPECT_FALSE(evaluator.Run({.step = 9})->has_value()) << "and none of it is the next one's";
  EXPECT_EQ((*evaluator.Run({.step = 10, .in_one_go = true}))->seconds, 1);
}

}  // namespace
}  // namespace espalier
