// The state that all ranks of a generation begin with: the newest that any of them holds, as a warm
// state or a verified checkpoint, else the weights of model.from, else the seeded initial weights.
// Ranks that hold less than the newest, or differ from it in a bit, receive it. Join, recovery and
// resume are this one path. Used by worker/session.cc before the first step. Compute thread.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/state/checkpoint_store.h"
#include "worker/state/replica.h"
#include "worker/state/replica_checkpoint.h"
#include "worker/state/warm_state.h"
#include "worker/sync/together.h"

namespace espalier {

struct StartState {
  Step step;
  std::string origin;  // for people: "checkpoint /jobs/1/step-00000500", "warm state of step 512"
  bool received = false;  // this rank had less and got it from another
};

struct StartOptions {
  // Committed steps that some node is known to hold: with less no rank begins, so that nothing that
  // was committed is forgotten. 0: anything will do.
  Step least;
  // Their names, for the message to people.
  std::string least_held_by;
  // Told what this rank's own folder holds, before the ranks compare: step 0 and no folder:
  // nothing. Not called where that is older than what some rank has in memory, since nobody looks.
  std::function<void(Step step, const std::string& folder)> on_found;
  // In which the replica lies; the frozen parameters are set then. Null: in private memory.
  WarmState* warm = nullptr;
};

// The values of model.from, or seeded ones, and the counters of a run that begins.
absl::Status SetInitialWeights(const v1::JobSpec& spec, Replica& replica);

// Every rank calls this; errors are the same on all of them. UNAVAILABLE: no rank holds `least`.
// FAILED_PRECONDITION: the bits of a reproducible run would change, since ranks compute otherwise
// than each other, or than what they would go on from was computed (OfTheirNodes).
absl::StatusOr<StartState> AgreeOnStart(const RankContext& context, const CheckpointStore& store,
                                        const RunIdentity& identity, Replica& replica,
                                        const StartOptions& options = {});

}  // namespace espalier
