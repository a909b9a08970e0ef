#include "worker/state/checkpoint_saver.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/state/replica_checkpoint.h"

namespace espalier {
namespace {

// What became of one rank's part of a checkpoint.
struct Copy {
  int64_t bytes = 0;
  int64_t published = 0;
};

Copy CopyOf(const CopyRole& role, const absl::Status& written, int64_t bytes) {
  return {bytes, role.writes && written.ok() ? 1 : 0};
}

}  // namespace

absl::StatusOr<SharedOutcome> CheckpointSaver::Save(Replica& replica,
                                                    std::optional<double> validation_loss) {
  const absl::Duration begin = context_.clock.Monotonic();
  RETURN_IF_ERROR(replica.residual().Gather(context_));
  absl::Status mine;
  RETURN_IF_ERROR(RunTogether(context_, [&]() -> absl::Status {
    if (role_.writes) mine = Write(replica, validation_loss);
    return absl::IsAborted(mine) ? mine : absl::OkStatus();  // fenced: the folder is another's
  }));
  ASSIGN_OR_RETURN(const std::vector<Copy> copies,
                   GatherValues(context_.collective, CopyOf(role_, mine, last_bytes_)));
  ASSIGN_OR_RETURN(SharedOutcome outcome, ShareStatus(context_.collective, mine));
  const bool published =
      std::any_of(copies.begin(), copies.end(), [](const Copy& copy) { return copy.published; });
  if (published) outcome.status = absl::OkStatus();
  if (published) last_step_ = replica.step();
  const absl::Duration spent = context_.clock.Monotonic() - begin;
  if (role_.writes) {
    Report(mine, replica.step(), spent);
  } else if (role_.writer >= 0 && copies[role_.writer].published) {
    // Another rank wrote it into the folder that this one has, too.
    last_folder_ = store_.Folder(replica.step());
    last_bytes_ = copies[role_.writer].bytes;
    Report(absl::OkStatus(), replica.step(), spent);
  }
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
