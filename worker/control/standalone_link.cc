#include "worker/control/standalone_link.h"

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

class StandaloneLink final : public ControlLink {
 public:
  StandaloneLink(StandaloneOptions options, Clock& clock)
      : options_(std::move(options)), clock_(clock) {}

  absl::StatusOr<v1::Welcome> Attach(const v1::Hello& hello, absl::Duration timeout) override {
    rank_ = hello.rank();
    return options_.welcome;
  }
  v1::Directive directive() const override { return options_.welcome.directive(); }
  bool WaitForDirectiveAfter(int64_t number, absl::Duration timeout) override {
    if (directive().number() > number) return true;
    clock_.Sleep(timeout);
    return false;
  }
  void Report(v1::AttachRequest message) override {
    if (rank_ != 0) return;
    if (message.has_step()) LogStep(message.step());
    if (message.has_evaluation()) {
      LogInfo(absl::StrFormat("step %d: validation loss %.4f nats per token",
                              message.evaluation().step(), message.evaluation().loss()));
    }
    if (message.has_checkpoint()) LogCheckpoint(message.checkpoint());
  }
  absl::Status Finish(const v1::Finished& finished, absl::Duration timeout) override {
    return absl::OkStatus();
  }
  absl::Status status() const override { return absl::OkStatus(); }
  ProgressBoard& progress() override { return board_; }

 private:
  void LogStep(const v1::StepReport& step) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    tokens_ += step.tokens();
    const absl::Duration now = clock_.Monotonic();
    const bool last = step.step() + 1 == options_.welcome.spec().train().steps();
    if (logged_at_ != absl::ZeroDuration() && now - logged_at_ < options_.log_interval && !last) {
      return;
    }
    std::string rate;
    if (logged_at_ != absl::ZeroDuration()) {
      const double seconds = absl::ToDoubleSeconds(now - logged_at_);
      rate = absl::StrFormat(", %.0f tokens/s",
                             static_cast<double>(tokens_) / std::max(seconds, 1e-9));
    }
    LogInfo(absl::StrFormat("step %d/%d: loss %.4f, gradient norm %.3f%s", step.step() + 1,
                            options_.welcome.spec().train().steps(), step.loss(),
                            step.gradient_norm(), rate));
    logged_at_ = now;
    tokens_ = 0;
  }

  static void LogCheckpoint(const v1::CheckpointReport& checkpoint) {
    if (checkpoint.error().empty()) {
      LogInfo(absl::StrCat("checkpoint ", checkpoint.path()));
    } else {
      LogError(absl::StrCat("no checkpoint at step ", checkpoint.step(), ": ", checkpoint.error(),
                            "; training goes on"));
    }
  }

  const StandaloneOptions options_;
  Clock& clock_;
  ProgressBoard board_;
  int32_t rank_ = 0;
  absl::Mutex mutex_;
  absl::Duration logged_at_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<ControlLink> MakeStandaloneLink(StandaloneOptions options, Clock& clock) {
  return std::make_unique<StandaloneLink>(std::move(options), clock);
}

}  // namespace espalier
