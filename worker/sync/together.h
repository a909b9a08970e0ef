// RunTogether: work that may take long on one rank and not on others (hashing data, loading or
// writing a checkpoint), without the others taking that rank for lost. Every result is shared, so
// that all ranks go on, or fail with the same reason. Used at the start of a generation and by
// checkpoints. Compute thread. Used by worker/sync, worker/state, worker/rollout,
// worker/task, worker/train and worker/run.cc.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "worker/collective/collective.h"
#include "worker/control/progress.h"
#include "worker/sync/background_work.h"

namespace espalier {

// What ties a rank to the others and to its observers.
struct RankContext {
  Collective& collective;
  Clock& clock;
  ProgressBoard& progress;
  // How long work that all wait for may use no processor before it is taken to hang: the system may
  // be busy for a while with what was written.
  absl::Duration patience = absl::Minutes(1);
};

// OK, or the error of the lowest rank whose work failed; the same on all ranks.
struct SharedOutcome {
  absl::Status status;
};

// The ranks at which an error arose that ranks have shared: all whose errors were of that kind.
// Empty: it is this rank's own.
std::vector<int32_t> FailedRanks(const absl::Status& status);
// The error, which arose at these ranks.
absl::Status WithFailedRanks(absl::Status status, const std::vector<int32_t>& ranks);

// The error, which these ranks meet because their nodes are as they are: it is not the job's, and
// others may go on with it.
absl::Status OfTheirNodes(absl::Status status);
bool IsOfTheirNodes(const absl::Status& status);

// Every rank calls this at the same place. `work` runs on a thread of its own while this one keeps
// the ranks in touch; returns when all are done. An error is the collective's (`work` has returned
// here even then), or DEADLINE_EXCEEDED: the work of the rank that it names (FailedRanks) hangs.
// Its thread is left behind there, so that the process must end.
absl::StatusOr<SharedOutcome> ShareOutcome(const RankContext& context,
                                           const std::function<absl::Status()>& work);

// Waits for work that each rank has started before, in the same way; the same errors. Leaves it to
// its owner to end it.
absl::StatusOr<SharedOutcome> AwaitTogether(const RankContext& context, BackgroundWork& work);

// One look at such work: absent while a rank is still at it. The same errors.
absl::StatusOr<std::optional<SharedOutcome>> LookTogether(const RankContext& context,
                                                          BackgroundWork& work);

// The outcome of work that each rank has done by itself already.
absl::StatusOr<SharedOutcome> ShareStatus(Collective& collective, const absl::Status& mine);

// ShareOutcome for callers to whom both kinds of error are one.
absl::Status RunTogether(const RankContext& context, const std::function<absl::Status()>& work);

// AllGather of one plain value.
template <typename T>
absl::StatusOr<std::vector<T>> GatherValues(Collective& collective, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  // What is received first: after an error the exchange may still write there, so it is left.
  auto values = std::make_unique<std::vector<T>>(collective.world_size() + 1, mine);
  std::byte* const bytes = reinterpret_cast<std::byte*>(values->data());
  const size_t received = collective.world_size() * sizeof(T);
  absl::Status status = collective.AllGather(absl::MakeConstSpan(bytes + received, sizeof(T)),
                                             absl::MakeSpan(bytes, received));
  if (!status.ok()) {
    values.release();
    return status;
  }
  values->pop_back();
  return std::move(*values);
}

// Broadcast of one plain value.
template <typename T>
absl::Status BroadcastValue(Collective& collective, T& value, Rank root) {
  static_assert(std::is_trivially_copyable_v<T>);
  auto sent = std::make_unique<T>(value);  // left after an error, as above
  absl::Status status = collective.Broadcast(
      absl::MakeSpan(reinterpret_cast<std::byte*>(sent.get()), sizeof(T)), root);
  if (!status.ok()) {
    sent.release();
    return status;
  }
  value = *sent;
  return status;
}

}  // namespace espalier
