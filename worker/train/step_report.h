// StepObserver: told what this rank reports; ConsoleReporter writes it to the log for a person, at
// a pace a person can read. Used by the trainer and run.cc. Compute thread.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "espalier/v1/worker.pb.h"

namespace espalier {

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void OnStep(const v1::StepReport& report) = 0;
  virtual void OnEvaluation(const v1::EvaluationReport& report) = 0;
};

// For rank 0: the first and the last step, and one line per interval between them.
class ConsoleReporter : public StepObserver {
 public:
  ConsoleReporter(Clock& clock, int64_t total_steps, absl::Duration interval)
      : clock_(clock), total_steps_(total_steps), interval_(interval) {}
  void OnStep(const v1::StepReport& report) override;
  void OnEvaluation(const v1::EvaluationReport& report) override;

 private:
  Clock& clock_;
  const int64_t total_steps_;
  const absl::Duration interval_;
  // Since the last line.
  absl::Duration last_line_ = -absl::InfiniteDuration();
  int64_t tokens_ = 0;
  int64_t steps_ = 0;
  double seconds_ = 0;
};

}  // namespace espalier
