// Ranks in threads that sample an order together, from a small random decoder over bytes, judged by
// a verifier of which anybody can tell what it says. Used by tests/worker/rollout and
// tests/worker/mac.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "tests/worker/rollout/letter_verifier.h"
#include "tests/worker/support/tiny_model.h"
#include "worker/collective/in_process.h"
#include "worker/rollout/rollout_engine.h"

namespace espalier {

inline DecoderConfig ByteConfig() {
  DecoderConfig config = TinyModelConfig();
  config.vocab_size = 257;
  config.initializer_range = 0.2;
  return config;
}

inline RolloutOrder SomeOrder(int64_t prompts, int64_t samples) {
  RolloutOrder order;
  order.moment = {.step = 4, .progress = 0.5};
  for (int64_t i = 0; i < prompts; ++i) {
    RolloutPrompt prompt{.id = 10 + i, .ids = {}, .record = std::string(1, 'a' + i % 20)};
    for (int64_t j = 0; j <= i % 5; ++j) prompt.ids.push_back(static_cast<int32_t>(60 + i + j));
    order.prompts.push_back(std::move(prompt));
  }
  order.samples = samples;
  order.seed = 9;
  return order;
}

struct SamplingWorld {
  std::vector<double> slow_down = {1};  // a rank each
  RolloutLimits limits = {.max_new_tokens = 24, .rows = 5};
  std::vector<int64_t> shares = {};
  std::vector<RolloutLimit> rank_limits = {};
  absl::Duration failure_timeout = absl::Seconds(60);
  std::function<bool(int rank)> called_away = nullptr;
  std::function<void(int rank, Collective& collective)> before = nullptr;  // a rank samples
  size_t judged_at_once = 64;
  std::function<void(int64_t)> judges = nullptr;  // by the verifier of any rank
  std::function<bool(int rank)> hangs = nullptr;  // a call of the verifier of this rank
  std::function<void(int64_t)> worked = nullptr;
  int64_t step = 0;  // of the job
  int times = 1;     // that the same engines sample the order; the last time counts
};

struct SampledRank {
  absl::StatusOr<std::optional<Rollouts>> rollouts = absl::UnknownError("did not run");
  int64_t judged = 0, judge_calls = 0;
};

inline std::vector<SampledRank> Sample(const SamplingWorld& world, const RolloutOrder& order) {
  static std::vector<TinyModel>& models = *new std::vector<TinyModel>;
  static const Tokenizer& tokenizer = *MakeByteTokenizer().release();
  const size_t ranks = world.slow_down.size();
  // A decoder is of one thread: its table of rotations grows.
  while (models.size() < ranks) models.emplace_back(ByteConfig());
  const auto group = InProcessGroup(static_cast<int>(ranks), world.failure_timeout);
  std::vector<SampledRank> results(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      ProgressBoard board;
      if (world.before) world.before(static_cast<int>(rank), *group[rank]);
      LetterVerifier::Counts counts;
      std::function<bool()> hangs;
      if (world.hangs) hangs = [&, rank] { return world.hangs(static_cast<int>(rank)); };
      RolloutEngine engine({*group[rank], RealClock(), board}, tokenizer,
                           std::make_unique<LetterVerifier>(&counts, world.judges, hangs),
                           {.limits = world.limits,
                            .judged_at_once = world.judged_at_once,
                            .slow_down = world.slow_down[rank]});
      RolloutAround around{.shares = world.shares, .worked = world.worked, .step = world.step};
      if (rank < world.rank_limits.size()) {
        around.limit = [&, rank] { return world.rank_limits[rank]; };
      }
      if (world.called_away) {
        around.called_away = [&, rank] { return world.called_away(static_cast<int>(rank)); };
      }
      for (int time = 0; time < world.times; ++time, counts = {}) {
        results[rank].rollouts = engine.Sample(*models[rank].decoder, order, around);
        results[rank].judged = counts.judged;
        results[rank].judge_calls = counts.calls;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

inline std::string TextOf(const Rollout& one) {
  return absl::StrCat(one.prompt, "/", one.sample, one.stopped ? " stopped " : " ", one.ids.size(),
                      " ", one.text, " ", one.judgement.total, " ", one.judgement.invalid);
}

inline void ExpectEqual(const std::vector<Rollout>& a, const std::vector<Rollout>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(TextOf(a[i]), TextOf(b[i]));
    EXPECT_EQ(a[i].ids, b[i].ids);
    EXPECT_EQ(a[i].judgement.components, b[i].judgement.components);
  }
}

// Of ranks that all have the same, without an error.
inline std::vector<Rollout> AllOf(const std::vector<SampledRank>& ranks) {
  for (const SampledRank& rank : ranks) {
    EXPECT_TRUE(rank.rollouts.ok()) << rank.rollouts.status();
    if (!rank.rollouts.ok() || !rank.rollouts->has_value()) return {};
    ExpectEqual((*rank.rollouts)->all, (*ranks[0].rollouts)->all);
  }
  return (*ranks[0].rollouts)->all;
}

}  // namespace espalier
