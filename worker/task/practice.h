// Practice: what a task does that learns from what the model itself makes, with all ranks together:
// the samples of each step, made before it, and evaluations by what the model does when it is
// asked. One per rank, beside the task, which all ranks may share. Implementations: rft_practice.h,
// grpo_practice.h. Used by worker/task, worker/train, worker/session.cc and tests with fakes.
// Compute thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/observe/task_figures.h"
#include "worker/model/model.h"
#include "worker/rollout/rollout.h"
#include "worker/state/slot_states.h"
#include "worker/sync/together.h"

namespace espalier {

// Where a rank practises.
struct PracticePlace {
  RankContext context;
  std::string folder;   // of checkpoints, on every node: what a task keeps lies there too
  bool writes = false;  // this rank writes there, for itself or for all that share it, if it can
  int64_t memory_limit_bytes = 0;  // of this worker; 0: what the machine has
  int local_ranks = 1;             // workers that share the machine's memory
  double slow_down = 1;            // as that of a Pace (worker/train/pace.h)
  uint64_t learns_from = 0;        // what the training state says of it (Practice::learns_from)
  // Asked just before a file there is replaced; null: always. ABORTED: the folder is another's.
  std::function<absl::Status()> may_write = nullptr;

  RolloutPlace rollouts() const { return {context, memory_limit_bytes, local_ranks, slow_down}; }
};

class Practice {
 public:
  virtual ~Practice() = default;

  // Every rank calls it at the beginning of `step` with equal models and slots; afterwards what
  // follows the step in `slots` says, equally on all ranks, what the slots of the step are to learn
  // from, for Task::Continue. False, on all ranks: one was called away, and the step has not begun.
  // Errors are those of RolloutSource.
  virtual absl::StatusOr<bool> Prepare(Step step, const Model& model, const RolloutAround& around,
                                       SlotStates& slots) = 0;

  // Grows with what is on disk of what is done before the next step, and is not lost with all
  // ranks.
  virtual int64_t kept() const { return 0; }

  // Why this rank's disk takes nothing of that any more, although it is to; empty: it does.
  virtual std::string WhyItKeepsNothing() const { return ""; }

  // A hash of what is made to learn from, which the training state keeps: of all of it, where that
  // is made before the first step, else of what there was up to the newest. 0: none, or not yet.
  virtual uint64_t learns_from() const { return 0; }

  // Behind the last step: why what all steps were to learn from taught nothing, and what to do
  // about it. Empty: it did, or some of it was made by others.
  virtual std::string WhyItTaughtNothing() const { return ""; }

  // Of a model, equal on all ranks. The loss falls as the model does better.
  struct Findings {
    double loss = 0;
    int64_t answers = 0;  // that it is the mean of
    std::vector<TaskFigure> figures;
  };
  // Every rank calls it at the same step. Absent, on all ranks, when one was called away, and after
  // each part unless `around.in_one_go`, so that the ranks meet at the boundary in between and tell
  // how far it is (kept): it is gone on from then. In one go `around.got_on` tells.
  virtual absl::StatusOr<std::optional<Findings>> Evaluate(const Model& model,
                                                           const RolloutAround& around) = 0;
};

}  // namespace espalier
