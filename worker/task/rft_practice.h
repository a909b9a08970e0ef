// RftPractice: the phases of rft around its fine-tuning: tests, sampling, verifying; and what is
// told of them. Every checkpoint folder, whoever writes checkpoints, has beside these
//   rft.progress.json  what was sampled so far (rft_progress.h)
//   rft.json           when all is: [[question, answer, reasoning], ...], a row an accepted prompt
//   rft-report.json    after every test: seconds, tokens a second, rows, accuracy, answer rate
// Used by rft.cc. Compute thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/rollout/rollout.h"
#include "worker/task/practice.h"
#include "worker/task/rft_asks.h"
#include "worker/task/rft_progress.h"
#include "worker/task/rft_table.h"

namespace espalier {

class RftPractice final : public Practice {
 public:
  // `inputs` and `table` outlive it.
  RftPractice(const PracticePlace& place, const RftInputs& inputs, RftTable& table,
              std::unique_ptr<RolloutSource> source);

  // Does the next part of what comes before the fine-tuning, and is false as long as there is more
  // of it, so that the ranks meet at the boundary in between; also while no folder takes what was
  // sampled. FAILED_PRECONDITION: nothing was accepted; or, of their nodes, behind the first step
  // no rank has what was sampled.
  absl::StatusOr<bool> Prepare(Step step, const Model& model, const RolloutAround& around,
                               SlotStates& slots) override;
  int64_t kept() const override { return begun_ ? 0 : kept_; }
  // The share of the validation prompts (evaluate.max_prompts) that are answered wrongly.
  absl::StatusOr<std::optional<Findings>> Evaluate(const Model& model,
                                                   const RolloutAround& around) override;

 private:
  // The seconds are rank 0's; they say how large the next order may be. Absent: called away.
  absl::StatusOr<std::optional<Rollouts>> Sample(const Model& model, const RolloutOrder& order,
                                                 const RolloutAround& around);
  absl::Status SampleNext(const Model& model, const RolloutAround& around);
  int64_t prompts_of_test() const;
  // The next validation prompts; false: called away, and `test` is as it was.
  absl::StatusOr<bool> TestNext(const Model& model, const RolloutAround& around, RftTest& test);

  absl::Status Load();
  // The folders that have a file now, the same on all ranks; all ranks together.
  enum class Folders { kNone, kSome, kAll };
  absl::StatusOr<Folders> Write(const std::string& name, const std::function<std::string()>& text);
  absl::Status KeepProgress();
  // What some folder lacks, once more. Whether one at least has everything.
  absl::StatusOr<bool> KeepAll();
  absl::Status Begin();
  std::string RowsAsJson() const;
  std::string ReportAsJson(const RftTest& after) const;
  bool sampled() const { return progress_ && progress_->done() == limits_.prompts; }
  bool leads() const { return place_.context.collective.rank() == Rank(0); }

  const PracticePlace place_;
  const RftInputs& inputs_;
  RftTable& table_;
  const std::unique_ptr<RolloutSource> source_;
  const RftLimits limits_;
  std::optional<RftProgress> progress_;
  RftOrderSize bounds_;  // of orders
  int64_t order_size_ = 0;
  Folders have_progress_ = Folders::kNone;  // as it is now
  Folders have_rows_ = Folders::kNone;
  bool told_of_folder_ = false;  // that this rank's takes nothing
  int64_t kept_ = 0;             // reach of what a folder has
  bool begun_ = false;           // the fine-tuning
  // Of the model at this step, when the ranks were called away.
  struct Broken {
    int64_t step = 0;
    RftTest test;
  };
  std::optional<Broken> broken_;
  double test_seconds_ = 0;
  absl::Duration begun_at_;
  double tested_before_ = 0;  // test_seconds_ then
  int64_t steps_ = 0;         // of this process
};

}  // namespace espalier
