// Evaluator: mean loss on the validation split, its sequences divided among the ranks as those of a
// step are, and so the passes between which they meet. Used by worker/train and worker/. Compute
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/order.h"
#include "worker/model/model.h"
#include "worker/sync/together.h"
#include "worker/task/practice.h"
#include "worker/task/task.h"
#include "worker/tensor/transfers.h"

namespace espalier {

struct Evaluation {
  double loss = 0;  // mean per token that counts, in nats; the same on all ranks
  int64_t tokens = 0;
  double seconds = 0;
  std::vector<TaskFigure> figures = {};  // of the task; the same on all ranks
};

class Evaluator {
 public:
  struct Options {
    int64_t max_sequences = 0;  // the first so many; 0: all
    // Passes of one sequence, whose losses are added in a way that no division into ranks changes.
    bool reproducible = false;
    Practice* practice = nullptr;  // of a task that has one: its evaluations are those
  };
  // Model and task outlive this; the task has a validation split.
  Evaluator(const RankContext& context, const Model& model, const Task& task, Options options);

  // What the run around it gives to an evaluation.
  struct Around {
    const Model* model = nullptr;  // in place of that which was given at first; null: that one
    int64_t micro_batch = 1;       // sequences of a pass of this rank at most, if memory allows
    // Of each rank in a step, the same on all ranks: what it computes in the time of the others.
    // Empty: as much as they do.
    std::vector<int64_t> sequences;
    std::function<RolloutLimit()> limit;  // as that of a RolloutAround
    std::function<void()> free_memory;    // gives back what can be spared
    // Asked before every pass: whether the ranks are wanted at the boundary. Null: never.
    std::function<bool()> called_away;
    int64_t step = 0;                        // committed
    bool in_one_go = false;                  // as that of a RolloutAround
    std::function<void()> got_on = nullptr;  // the same
  };
  // Every rank calls this at the same step. The ranks keep in touch before every pass, so that the
  // slowest is not taken for lost. Absent, on all of them: one was called away, and what had been
  // computed is dropped; or of a practice there is more, which goes on where it was.
  absl::StatusOr<std::optional<Evaluation>> Run(const Around& around);
  int64_t sequences() const { return sequences_; }

 private:
  struct Sums {
    double loss = 0;
    int64_t tokens = 0;
    int64_t figure_tokens = 0;
    int64_t left = 0;  // sequences this rank has still to do
    int64_t most = 0;  // of a pass of this rank
    int64_t called_away = 0;
    std::array<double, kEvaluationFigures> figures = {};
  };
  Evaluation Mean(const Sums& total) const;
  static Sums TotalOf(const std::vector<Sums>& all);
  static int64_t RowsOf(size_t rank, const std::vector<Sums>& all,
                        const std::vector<int64_t>& shares);
  absl::Status Pass(const Model& model, SlotRange range, Sums& sums);
  absl::StatusOr<std::optional<Evaluation>> RunPractice(const Around& around);
  // The first sequences of `range`, all of them or as many as fit; how many.
  absl::StatusOr<int64_t> PassThatFits(const Around& around, SlotRange range, Sums& sums);

  RankContext context_;
  const Model& model_;
  const Task& task_;
  Options options_;
  Transfers transfers_;
  const std::function<void(int64_t)> worked_;  // of every pass, so that it knows the device
  int64_t sequences_;
  // What the parts of a practice's evaluation have taken so far.
  int64_t begun_step_ = -1;
  double seconds_ = 0;
};

}  // namespace espalier
