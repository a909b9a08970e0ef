#include "worker/train/step_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/observe/log.h"

namespace espalier {

void ConsoleReporter::OnStep(const v1::StepReport& report) {
  tokens_ += report.tokens();
  ++steps_;
  seconds_ += report.step_seconds() + report.checkpoint_seconds() + report.evaluate_seconds();
  const bool last = report.step() + 1 == total_steps_;
  const absl::Duration now = clock_.Monotonic();
  if (!last && now - last_line_ < interval_) return;
  const double seconds = seconds_ > 0 ? seconds_ : 1e-9;
  const int64_t left = total_steps_ - report.step() - 1;
  const absl::Duration eta =
      absl::Seconds(static_cast<int64_t>(static_cast<double>(left) * seconds / steps_ + 0.5));
  LogInfo(absl::StrCat(
      absl::StrFormat("step %d/%d  loss %.4f  norm %.3f  lr %.3g  %.0f tokens/s  %.0f MB  %s left",
                      report.step() + 1, total_steps_, report.loss(), report.gradient_norm(),
                      report.learning_rate(), static_cast<double>(tokens_) / seconds,
                      static_cast<double>(report.pass_peak_bytes()) / 1e6,
                      absl::FormatDuration(eta)),
      report.skipped() ? "  (update skipped: not finite)" : ""));
  last_line_ = now;
  tokens_ = steps_ = 0;
  seconds_ = 0;
}

void ConsoleReporter::OnEvaluation(const v1::EvaluationReport& report) {
  LogInfo(absl::StrFormat("validation after step %d: loss %.4f (%d tokens, %.1f s)", report.step(),
                          report.loss(), report.tokens(), report.seconds()));
}

}  // namespace espalier
