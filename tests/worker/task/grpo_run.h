// Runs of group relative policy optimisation on what rewards completions that are made up. Used by
// tests/worker/task. One thread.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/config/job_file.h"
#include "tests/worker/support/fake_rollouts.h"
#include "tests/worker/support/training_world.h"
#include "worker/task/grpo.h"

namespace espalier {

struct Split {
  std::vector<int> shares = {1}, micro_batch = {16};
};

// A run and its task, on what rewards completions.
struct GrpoRun {
  WorldOptions options;
  FakeRollouts::Options fake = {.reward = SameParity};
  int64_t prompts = 24, validation = 8;
  int32_t prompt_tokens = 2;  // at least
  std::shared_ptr<Task> task = nullptr;

  v1::TrainSpec& train() { return *options.spec.mutable_train(); }
  std::vector<RankResult> Train() {
    task = *Grpo::Create(
        options.spec, {TinyPrompts(prompts, prompt_tokens), TinyPrompts(validation), {}},
        [this](const RolloutPlace&) -> absl::StatusOr<std::unique_ptr<RolloutSource>> {
          return std::make_unique<FakeRollouts>(fake);
        });
    options.task = task.get();
    std::vector<RankResult> results = TrainWorld(options);
    for (const RankResult& result : results) {
      EXPECT_TRUE(result.outcome.ok()) << result.outcome.status();
      EXPECT_EQ(result.fingerprint, results[0].fingerprint) << "replicas differ";
      EXPECT_EQ(result.losses, results[0].losses);
    }
    return results;
  }
};

inline GrpoRun RunOf(int64_t steps, const std::string& folder, const Split& split = {},
                     int updates = 1) {
  GrpoRun run;
  run.options.ranks = static_cast<int>(split.shares.size());
  run.options.spec = TinySpec(steps);
  run.train().set_task(v1::TASK_GRPO);
  run.train().mutable_schedule()->set_kind(v1::SCHEDULE_KIND_CONSTANT);
  run.train().mutable_rollout()->set_samples(4);
  run.train().mutable_rollout()->set_max_new_tokens(6);
  run.train().mutable_grpo()->set_updates_per_rollout(updates);
  FillJobDefaults(run.options.spec);
  for (const int share : split.shares) run.options.spec.mutable_parallel()->add_shares(share);
  for (const int size : split.micro_batch) run.options.spec.mutable_batch()->add_micro_batch(size);
  run.options.checkpoints = folder;
  return run;
}

inline std::map<std::string, double> FiguresOf(const v1::StepReport& report) {
  std::map<std::string, double> figures;
  for (const v1::TaskFigure& one : report.figures()) figures[one.name()] = one.value();
  return figures;
}

inline void ExpectSame(const std::vector<double>& a, const std::vector<double>& b,
                       size_t from = 0) {
  ASSERT_EQ(a.size(), b.size() - from);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[from + i], 1e-5) << "step " << from + i;
}

}  // namespace espalier
