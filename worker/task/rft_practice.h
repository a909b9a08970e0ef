// RftPractice: the phases of rft around its fine-tuning: tests, sampling, verifying; and what is
// told of them. Whoever writes checkpoints keeps beside them
//   rft.progress.json  what was sampled so far (rft_progress.h)
//   rft.json           when all is: [[question, answer, reasoning], ...], a row an accepted prompt
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
#include "worker/task/practice.h"
#include "worker/task/rft_progress.h"
#include "worker/task/rft_table.h"

namespace espalier {

class RftPractice final : public Practice {
 public:
  // `inputs` and `table` outlive it.
  RftPractice(const PracticePlace& place, const RftInputs& inputs, RftTable& table,
              std::unique_ptr<RolloutSource> source)
      : place_(place), inputs_(inputs), table_(table), source_(std::move(source)) {}

  // Does the next part of what comes before the fine-tuning, and is false as long as there is more
  // of it, so that the ranks meet at the boundary in between. FAILED_PRECONDITION: nothing was
  // accepted, or, behind the first step, what was sampled is nowhere any more.
  absl::StatusOr<bool> Prepare(Step step, const Model& model, const RolloutAround& around,
                               SlotStates& slots) override;
  // The share of the validation prompts (evaluate.max_prompts) that are answered wrongly.
  absl::StatusOr<std::optional<Findings>> Evaluate(const Model& model,
                                                   const RolloutAround& around) override;

 private:
  int64_t BlockSize() const;
  absl::StatusOr<std::optional<RftTest>> Test(const Model& model, const RolloutAround& around);
  absl::Status SampleBlock(const Model& model, const RolloutAround& around);
  // All ranks together, where this one writes. What is not needed and cannot be written is told.
  enum class Needed { kYes, kNo };
  absl::Status Write(const std::string& name, const std::string& text, Needed needed);
  absl::Status KeepProgress();
  absl::Status Begin();
  std::string RowsAsJson() const;
  std::string ReportAsJson(const RftTest& after) const;
  bool leads() const;

  const PracticePlace place_;
  const RftInputs& inputs_;
  RftTable& table_;
  const std::unique_ptr<RolloutSource> source_;
  std::optional<RftProgress> progress_;
  bool begun_ = false;  // the fine-tuning
  double test_seconds_ = 0;
  absl::Duration begun_at_;
  double tested_before_ = 0;  // test_seconds_ then
  int64_t steps_ = 0;         // of this process
};

}  // namespace espalier
