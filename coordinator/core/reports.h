// What attached workers say. Used by Advance. One thread.
#pragma once

#include "coordinator/core/context.h"

namespace espalier {

// Each finds the rank by its stream; a stream that has not said hello (to this coordinator) is
// closed with UNAVAILABLE, so that the worker attaches again.
void OnReport(Context& context, const WorkerReady& report);
void OnReport(Context& context, const WorkerProgress& report);
void OnReport(Context& context, const WorkerStepReported& report);
void OnReport(Context& context, const WorkerEvaluated& report);
void OnReport(Context& context, const WorkerCheckpointed& report);
void OnReport(Context& context, const DirectiveAcked& report);
void OnReport(Context& context, const WorkerFinished& report);
void OnReport(Context& context, const WorkerDetached& report);

}  // namespace espalier
