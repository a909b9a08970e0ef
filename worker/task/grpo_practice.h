// GrpoPractice: the completions that steps of grpo learn from, and what the model answers when it
// is examined. Used by grpo.h. Compute thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/order.h"
#include "worker/reward/wordle_game.h"
#include "worker/task/grpo_slots.h"
#include "worker/task/paced_rollouts.h"
#include "worker/task/policy_loss.h"
#include "worker/task/practice.h"
#include "worker/task/practice_folder.h"
#include "worker/task/wordle_games.h"

namespace espalier {

// What there is to learn from and to be examined by.
struct GrpoPrompts {
  std::vector<RolloutPrompt> training, validation;  // their ids are their places
  std::optional<WordleMatch> games;                 // that evaluations play besides
  std::string data_hash = {};                       // of what all this was made of
};

class GrpoPractice final : public Practice {
 public:
  // `spec` and `prompts` outlive it.
  static absl::StatusOr<std::unique_ptr<Practice>> Create(const v1::JobSpec& spec,
                                                          const GrpoPrompts& prompts,
                                                          const PracticePlace& place,
                                                          std::unique_ptr<RolloutSource> source);

  // Of every train.grpo.updates_per_rollout-th step, global_batch / rollout.samples prompts, in the
  // order of the data, completed and judged; the steps between go on with the same.
  absl::StatusOr<bool> Prepare(Step step, const Model& model, const RolloutAround& around,
                               SlotStates& slots) override;
  // All groups earned the same, from step 0 on.
  std::string WhyItTaughtNothing() const override;
  // Validation prompts, evaluate.max_prompts of them, completed with the likeliest ids: the loss is
  // minus their mean reward, so that the best checkpoint is the best player. Rewards that change
  // with training are those of its end, so that all evaluations of a job compare. Then the games.
  // Made in orders, after each of which what has come of it is kept in every checkpoint folder
  // (grpo.test.json, test_progress.h).
  absl::StatusOr<std::optional<Findings>> Evaluate(const Model& model,
                                                   const RolloutAround& around) override;
  int64_t kept() const override { return kept_; }
  // A hash of all completions and advantages up to the last rollout: another policy, had one of
  // them been another.
  uint64_t learns_from() const override { return learns_from_; }
  std::string WhyItKeepsNothing() const override { return folder_.error(); }

 private:
  GrpoPractice(const v1::JobSpec& spec, const GrpoPrompts& prompts, const PracticePlace& place,
               SampleOrder order, std::unique_ptr<RolloutSource> source);
  // What was sampled for `step`. A prompt that is in it again, as one epoch goes over into the
  // next, has its number plus the size of the table, so that its completions are others.
  RolloutOrder OrderOf(Step step) const;
  absl::Status Fill(Step step, const RolloutOrder& order, const std::vector<Rollout>& rollouts,
                    SlotStates& slots);
  size_t prompts_of_evaluation() const;

  // An evaluation of the model of this step, as far as the ranks have come with it.
  struct Examination {
    int64_t step = 0;
    size_t answers = 0;  // of the first so many prompts
    double reward = 0, accepted = 0, stopped = 0, tokens = 0;
    std::vector<WordleGame> games;
    int64_t reach() const;  // grows with every order
  };
  static std::string ToJson(const Examination& examination);
  // False: it is not of these prompts and games, and `examination` is what it was.
  static bool FromJson(const std::string& json, Examination& examination);
  bool IsDone(const Examination& examination) const;
  std::string name_of_test() const;
  // Where the ranks' folders say that one of the step is.
  absl::StatusOr<Examination> Load(int64_t step);
  absl::Status Keep(const Examination& examination);
  // The next prompts or turns; false: called away, and `examination` is as it was.
  absl::StatusOr<bool> GoOn(const Model& model, const RolloutAround& around,
                            Examination& examination);
  absl::StatusOr<bool> AnswerNext(const Model& model, const RolloutAround& around,
                                  Examination& examination);

  const PracticePlace place_;
  const v1::JobSpec& spec_;
  const GrpoPrompts& prompts_;
  const SampleOrder order_;
  const std::unique_ptr<RolloutSource> source_;
  PacedRollouts paced_;  // evaluations
  PracticeFolder folder_;
  std::optional<Examination> under_way_;
  bool replaces_ = false;  // a file of it that is of no use here
  int64_t kept_ = 0;       // reach of what this rank's folder has of it
  uint64_t learns_from_;
  std::optional<Step> filled_;       // the newest rollout's
  uint64_t learnt_from_before_ = 0;  // learns_from() then
  // Of what this process has sampled for steps; the first of these was step 0.
  int64_t groups_ = 0, equal_groups_ = 0;
  bool games_fit_ = false;  // CheckRoomForGames has said so
  bool from_the_beginning_ = false;
};

}  // namespace espalier
