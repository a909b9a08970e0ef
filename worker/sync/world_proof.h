// WorldProof: the ranks of a generation prove to each other that one coordinator welcomed them all,
// before any of them takes anything else from the others. Each draws a nonce; then each sends the
// keyed hash of all nonces and its rank, which only who has the secret can make, and nobody can
// repeat from an earlier world. Without a coordinator the secret is empty and proves that the ranks
// talk of the same thing, no more. Used by worker/run.cc. Compute thread.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/collective/collective.h"

namespace espalier {

// Every rank calls this first. ABORTED names the rank that could not prove itself: an outsider in
// its place, or a worker of another espalierd. Errors of the collective.
absl::Status ProveWorld(Collective& collective, absl::string_view secret);

}  // namespace espalier
