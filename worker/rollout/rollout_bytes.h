// What ranks tell each other of completions, as bytes: everything that one rank has sampled and
// judged comes to all. Used by rollout_engine.cc, and by worker/task. Compute thread; packing is
// pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/collective/collective.h"
#include "worker/rollout/rollout.h"

namespace espalier {

std::string PackRollouts(const std::vector<Rollout>& rollouts);
// INTERNAL for what PackRollouts did not make.
absl::StatusOr<std::vector<Rollout>> UnpackRollouts(absl::string_view bytes);

// Every rank's bytes, by rank. Every rank calls it; errors of the collective, as AllGather.
absl::StatusOr<std::vector<std::string>> GatherBytes(Collective& collective,
                                                     absl::string_view mine);

}  // namespace espalier
