// Which ranks of a generation write its checkpoints: rank 0, and as many others on machines of
// their own as checkpoint.copies asks for. Replicas are equal, so each writes its own and nothing
// travels. Ranks that find each other's mark in the checkpoint folder share it, whatever the
// machines are called: one of them writes for all. Used by checkpoint_saver.h and
// worker/session.cc. Compute thread.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "espalier/v1/job.pb.h"
#include "worker/state/checkpoint_store.h"
#include "worker/sync/together.h"

namespace espalier {

// One rank's part.
struct CopyRole {
  // Writes into its folder.
  bool writes = false;

  // The rank that writes into the folder that this one has; itself where it writes. -1: nobody.
  int32_t writer = -1;

  // The lowest of the ranks that have its folder: what every folder is to hold, however many hold
  // checkpoints, it writes there. So is one whose folder takes nothing yet: there may be room
  // later.
  bool keeps = false;
};

// Every rank calls this before the first checkpoint is looked for: finds out who shares a folder,
// and takes the folders of those who write. An error when rank 0 cannot write into its folder, the
// same on all ranks; another that cannot has no copy, and its log says why.
absl::StatusOr<CopyRole> DivideCopies(const RankContext& context, CheckpointStore& store,
                                      const v1::CheckpointSpec& spec);

// The rule by itself: the writer of each rank's folder, from the lowest rank that shares it (-1: a
// folder that cannot be written). The first `copies` folders in the order of ranks are written,
// each by its lowest rank; -1: nobody writes this rank's.
std::vector<int32_t> ChooseWriters(absl::Span<const int32_t> folders, int copies);

}  // namespace espalier
