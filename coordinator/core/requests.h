// What operators ask of a job, in every state it may be in. Used by Advance. One thread.
#pragma once

#include "coordinator/core/context.h"

namespace espalier {

void OnRequest(Context& context, const PauseRequested& request);
void OnRequest(Context& context, const ResumeRequested& request);
void OnRequest(Context& context, const CancelRequested& request);
void OnRequest(Context& context, const CheckpointRequested& request);

}  // namespace espalier
