// StepReporter: what this rank tells of its work: steps, evaluations, acknowledged directives; and
// StepObserver, who is told the same here: ConsoleReporter writes it to the log for a person, at a
// pace a person can read. Used by worker/train and worker/session.cc. Compute thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/observe/task_figures.h"
#include "espalier/v1/worker.pb.h"
#include "worker/control/control_client.h"
#include "worker/data/samples.h"
#include "worker/sync/together.h"
#include "worker/task/open_task.h"
#include "worker/train/evaluate.h"
#include "worker/train/time_accounts.h"

namespace espalier {

google::protobuf::RepeatedPtrField<v1::TaskFigure> ToProto(const std::vector<TaskFigure>& figures);

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void OnStep(const v1::StepReport& report) = 0;
  virtual void OnEvaluation(const v1::EvaluationReport& report) = 0;
};

// For rank 0: the first and the last step, and one line per interval between them.
class ConsoleReporter : public StepObserver {
 public:
  ConsoleReporter(Clock& clock, int64_t total_steps, absl::Duration interval, TaskUnits units = {})
      : clock_(clock), total_steps_(total_steps), interval_(interval), units_(units) {}
  void OnStep(const v1::StepReport& report) override;
  void OnEvaluation(const v1::EvaluationReport& report) override;

 private:
  Clock& clock_;
  const int64_t total_steps_;
  const absl::Duration interval_;
  const TaskUnits units_;
  // Since the last line.
  absl::Duration last_line_ = -absl::InfiniteDuration();
  int64_t tokens_ = 0;
  int64_t steps_ = 0;
  double seconds_ = 0;
};

class StepReporter {
 public:
  // All outlive this; `observer` may be null.
  StepReporter(const RankContext& context, ControlClient& client, StepObserver* observer);

  // Fills in what the step took and what was exchanged in it, and sends the report.
  void Step(v1::StepReport report, TimeAccounts& accounts);
  // What was done since the last report, without a step: before the one that follows `step`, or
  // behind the last. `kept` and `error`: see Practice.
  void Practised(int64_t step, int64_t kept, const std::string& error, TimeAccounts& accounts);
  // Of rank 0 alone; nothing elsewhere.
  void Evaluated(v1::EvaluationReport report);
  // The newest directive that has been obeyed.
  void Acknowledge(int64_t directive, v1::RunState state, int64_t next_step);

  // What this rank does from now on.
  void Enter(v1::Phase phase);

 private:
  void AddExchange(v1::StepReport& report);

  RankContext context_;
  ControlClient& client_;
  StepObserver* observer_;
  CollectiveStats reported_;  // as of the last report
};

}  // namespace espalier
