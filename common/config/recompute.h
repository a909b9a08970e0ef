// train.recompute as a choice of layers. Used by job_rules.cc and worker/state/replica.cc, so
// that both understand it alike. Pure: any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/job.pb.h"

namespace espalier {

// Whether each of the model's `layers` is recomputed: none, every second one from layer 0 on, all,
// or the ones that are listed. INVALID_ARGUMENT names the entry that is none of these.
absl::StatusOr<std::vector<bool>> RecomputedLayers(const v1::TrainSpec& train, int64_t layers);

}  // namespace espalier
