// Figures that single tasks have beside a loss, as a mean reward: their names, which are labels of
// two metrics. A figure of another name is not shown, so labels are bounded. Used by worker/task,
// worker/train, the exporter (coordinator/service) and all_metrics.h. Constants: any thread.
#pragma once

#include <algorithm>
#include <array>

#include "absl/strings/string_view.h"
#include "common/observe/metric_names.h"

namespace espalier {

struct TaskFigure {
  absl::string_view name;  // of kTaskFigures
  double value = 0;
};

inline constexpr std::array kTaskFigures = std::to_array<absl::string_view>({
    // Deep supervision, over samples that halted: of their answers' tokens those that are right,
    // samples of which all are, samples whose halting said whether they are; supervision steps.
    // Over
    // all samples: the loss of saying so.
    "accuracy",
    "exact_accuracy",
    "halt_accuracy",
    "steps",
    "halt_loss",
    // Preferences: pairs whose better answer the model prefers by more than the reference does, and
    // by how much, in nats times beta; how much likelier than to the reference each answer is.
    "preference_accuracy",
    "preference_margin",
    "preference_chosen",
    "preference_rejected",
    // Rewards, over the completions of a step: their mean, and the mean spread within a group;
    // fractions that are accepted, and that end by themselves; mean tokens.
    "reward",
    "reward_std",
    "accepted",
    "stopped",
    "completion_tokens",
    // What the parts of a reward are by themselves, of the verifiers that come with Espalier.
    "reward_format",
    "reward_feedback",
    "reward_information",
    "reward_accuracy",
    "reward_repeat",
    "reward_consistency",
    "reward_solved",
    "reward_correct",
    // Policy gradients: fraction of tokens that are clipped, nats per token from the reference and
    // of the policy itself, groups that teach nothing.
    "clip_fraction",
    "kl",
    "entropy",
    "zero_advantage_groups",
    // Questions: fraction that is answered at all.
    "answer_rate",
    // Games (worker/reward/wordle_game.h): fraction that is solved, turns of those, and with 7 for
    // the others; fractions of turns without a word, with one that is in no list, with a repeated
    // one; what a turn rules out of the candidates: nats, and as a fraction.
    "solve_rate",
    "mean_turns_solved",
    "mean_turns",
    "parse_fail_rate",
    "out_of_vocabulary_rate",
    "repeat_rate",
    "mean_log_reduction",
    "mean_fraction_reduction",
});

inline bool IsTaskFigure(absl::string_view name) {
  return std::find(kTaskFigures.begin(), kTaskFigures.end(), name) != kTaskFigures.end();
}

namespace metrics {

inline constexpr MetricName kJobTaskFigure = {
    "espalier_job_task_figure", MetricKind::kGauge,
    "Figures that the job's task has of its last step, by label figure."};
inline constexpr MetricName kJobEvaluationFigure = {
    "espalier_job_evaluation_figure", MetricKind::kGauge,
    "Figures that the job's task has of its last evaluation, by label figure."};

}  // namespace metrics

}  // namespace espalier
