#include "worker/state/checkpoint_saver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/state/replica_checkpoint.h"

namespace espalier {

absl::StatusOr<SharedOutcome> CheckpointSaver::Save(Replica& replica,
                                                    std::optional<double> validation_loss) {
  const absl::Duration begin = context_.clock.Monotonic();
  RETURN_IF_ERROR(replica.residual().Gather(context_));
  const bool writes = context_.collective.rank() == Rank(0);
  ASSIGN_OR_RETURN(SharedOutcome outcome, ShareOutcome(context_, [&]() -> absl::Status {
                     return writes ? Write(replica, validation_loss) : absl::OkStatus();
                   }));
  if (outcome.status.ok()) last_step_ = replica.step();
  if (writes) Report(outcome.status, replica.step(), context_.clock.Monotonic() - begin);
  if (absl::IsAborted(outcome.status)) return outcome.status;  // fenced: the folder is another's
  return outcome;
}

absl::Status CheckpointSaver::Write(Replica& replica, std::optional<double> validation_loss) {
  const CheckpointContent content = ContentOf(replica, identity_, validation_loss);
  ASSIGN_OR_RETURN(PublishedCheckpoint published, store_.Write(content));
  last_folder_ = std::move(published.folder);
  last_bytes_ = published.bytes;
  if (!store_.prune_status().ok()) {
    LogWarning(absl::StrCat("old checkpoints were not removed: ", store_.prune_status().message()));
  }
  return absl::OkStatus();
}

void CheckpointSaver::Report(const absl::Status& status, Step step, absl::Duration spent) {
  v1::AttachRequest message;
  v1::CheckpointReport& report = *message.mutable_checkpoint();
  report.set_step(step.value());
  report.set_seconds(absl::ToDoubleSeconds(spent));
  if (status.ok()) {
    report.set_path(last_folder_);
    report.set_bytes(last_bytes_);
    LogInfo(absl::StrFormat("checkpoint %s (%.1f MB, %.2f s)", last_folder_,
                            static_cast<double>(last_bytes_) / 1e6, report.seconds()));
  } else {
    report.set_error(std::string(status.message()));
    LogError(absl::StrCat("the checkpoint of step ", step.value(),
                          " could not be written: ", status.message()));
  }
  client_.Report(std::move(message));
}

}  // namespace espalier
