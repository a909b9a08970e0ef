// StepReporter: what this rank tells of its work: steps, evaluations, acknowledged directives.
// Used by worker/train. Compute thread.
#pragma once

#include <cstdint>

#include "espalier/v1/worker.pb.h"
#include "worker/control/link.h"
#include "worker/data/samples.h"
#include "worker/sync/together.h"
#include "worker/train/evaluate.h"
#include "worker/train/step_report.h"
#include "worker/train/time_accounts.h"

namespace espalier {

class StepReporter {
 public:
  // All outlive this; `observer` may be null.
  StepReporter(const RankContext& context, ControlLink& link, StepObserver* observer);

  // Fills in what the step took and what was exchanged in it, and sends the report.
  void Step(v1::StepReport report, TimeAccounts& accounts);
  // Of rank 0 alone; nothing elsewhere.
  void Evaluated(int64_t step, const Evaluation& evaluation);
  // The newest directive that has been obeyed.
  void Acknowledge(int64_t directive, v1::RunState state, int64_t next_step);

  // What this rank does from now on.
  void Enter(v1::Phase phase);

 private:
  void AddExchange(v1::StepReport& report);

  RankContext context_;
  ControlLink& link_;
  StepObserver* observer_;
  CollectiveStats reported_;  // as of the last report
};

}  // namespace espalier
