// What of a job follows from how many samples its data have: train.steps from train.epochs, and
// from either warm-up by train.schedule.warmup_ratio. Used by job_file.cc,
// coordinator/ctl/data_check.cc, worker/job_inputs.cc and worker/run.cc. Pure: any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// Steps in which every sample is used once; the last takes what is left.
int64_t StepsPerEpoch(int64_t samples, int64_t global_batch);

// Completions that are samples of their own of a row of the data: those of a prompt of grpo;
// else 1.
int64_t CompletionsOfSample(const v1::JobSpec& spec);

// Whether the number of steps is still to be told, by ResolveEpochs.
bool NeedsSamples(const v1::JobSpec& spec);

// Sets train.steps where train.epochs is given, and schedule.warmup_steps where warmup_ratio is.
// INVALID_ARGUMENT when they were given too, as other numbers.
absl::Status ResolveEpochs(int64_t samples, v1::JobSpec& spec);

// The same of the warm-up alone, of a job that has its steps.
void ResolveWarmup(v1::JobSpec& spec);

}  // namespace espalier
