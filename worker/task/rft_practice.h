// RftPractice: the phases of rft around its fine-tuning: tests, sampling, verifying; and what is
// told of them. Every checkpoint folder, whoever writes checkpoints, has beside these
//   rft.progress.json  what was sampled so far (rft_progress.h)
//   rft.json           when all is: [[question, answer, reasoning], ...], a row an accepted prompt
//   rft.test.json      how far the newest test of a step is (test_progress.h)
//   rft-report.json    after every test: seconds, tokens a second, rows, accuracy, answer rate
// Used by rft.cc. Compute thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/rollout/rollout.h"
#include "worker/task/paced_rollouts.h"
#include "worker/task/practice.h"
#include "worker/task/practice_folder.h"
#include "worker/task/rft_asks.h"
#include "worker/task/rft_progress.h"
#include "worker/task/rft_table.h"
#include "worker/task/test_progress.h"

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
  std::string WhyItKeepsNothing() const override { return folder_.error(); }
  int64_t kept() const override { return begun_ ? kept_of_test_ : kept_; }
  // The share of the validation prompts (evaluate.max_prompts) that are answered wrongly.
  absl::StatusOr<std::optional<Findings>> Evaluate(const Model& model,
                                                   const RolloutAround& around) override;
  uint64_t learns_from() const override { return learns_from_; }

 private:
  using Has = PracticeFolder::Has;
  absl::StatusOr<std::optional<Rollouts>> Sample(const Model& model, const RolloutOrder& order,
                                                 const RolloutAround& around);
  absl::Status SampleNext(const Model& model, const RolloutAround& around);
  int64_t prompts_of_test() const;
  // The next validation prompts; false: called away, and `test` is as it was.
  absl::StatusOr<bool> TestNext(const Model& model, const RolloutAround& around, RftTest& test);

  absl::Status Load();
  absl::Status KeepProgress();
  absl::Status LoadTest(int64_t step);
  absl::Status KeepTest(int64_t step);
  // What some folder lacks, once more. Whether one at least has everything.
  absl::StatusOr<bool> KeepAll();
  absl::Status Begin();
  std::string RowsAsJson() const;
  std::string ReportAsJson(const RftTest& after) const;
  // All prompts are done; or steps have begun with the rows, whatever the file that was found says
  // of prompts without one.
  bool sampled() const {
    if (!progress_) return false;
    return progress_->done() == limits_.prompts || (learns_from_ != 0 && !progress_->rows.empty());
  }
  std::string name_of_test() const;
  bool leads() const { return place_.context.collective.rank() == Rank(0); }

  const PracticePlace place_;
  const RftInputs& inputs_;
  RftTable& table_;
  const std::unique_ptr<RolloutSource> source_;
  PacedRollouts paced_;
  PracticeFolder folder_;
  const RftLimits limits_;
  std::optional<RftProgress> progress_;
  std::string written_;  // RftProgressHead of what this process wrote last
  Has have_progress_ = Has::kNone;
  Has have_rows_ = Has::kNone;
  int64_t kept_ = 0;          // reach of what this rank's folder has
  int64_t kept_of_test_ = 0;  // answers of the step's test that it has
  bool begun_ = false;        // the fine-tuning
  uint64_t learns_from_ = 0;
  int64_t tested_step_ = -1;
  std::optional<RftTest> test_;  // of that step, which is not ended
  double test_seconds_ = 0;
  absl::Duration begun_at_;
  double tested_before_ = 0;  // test_seconds_ then
  int64_t steps_ = 0;         // of this process
};

}  // namespace espalier
