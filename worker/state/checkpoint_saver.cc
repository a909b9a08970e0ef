#include "worker/state/checkpoint_saver.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

// Between two looks at what is to be done within a time; and how long what is given up may take to
// end before it is left behind.
constexpr absl::Duration kLook = absl::Milliseconds(20);
constexpr absl::Duration kGiveUpPatience = absl::Seconds(2);

// What became of one rank's part of a checkpoint.
struct Copy {
  int64_t bytes = 0;
  int64_t published = 0;
};

}  // namespace

// What hangs is left behind, with what it refers to.
CheckpointSaver::~CheckpointSaver() {
  if (busy() && !beside_->Cancel(context_.patience)) static_cast<void>(beside_.release());
}

// Whoever started from what differs would go on with the same fault.
absl::Status CheckpointSaver::CheckEqual(absl::Status equal) {
  differ_ = IsOfUnequalReplicas(equal);
  return equal;
}

absl::StatusOr<SharedOutcome> CheckpointSaver::Save(Replica& replica,
                                                    std::optional<double> validation_loss) {
  const absl::Duration begun = context_.clock.Monotonic();
  RETURN_IF_ERROR(replica.residual().Gather(context_));
  RETURN_IF_ERROR(CheckEqual(CheckReplicasEqual(context_, replica)));
  absl::StatusOr<PublishedCheckpoint> mine = PublishedCheckpoint();
  RETURN_IF_ERROR(RunTogether(context_, [&] {
    if (role_.writes) mine = store_.Write(ContentOf(replica, identity_, validation_loss));
    return absl::OkStatus();
  }));
  return Conclude(replica.step(), begun, mine);
}

// Nodes may compute on unlike devices: all wait where one has to.
absl::StatusOr<bool> CheckpointSaver::Waits(Replica& replica) {
  const int32_t mine = !replica.parameters().flat().is_cpu() || replica.residual().kept() ? 1 : 0;
  ASSIGN_OR_RETURN(const std::vector<int32_t> all, GatherValues(context_.collective, mine));
  return absl::c_any_of(all, [](int32_t one) { return one != 0; });
}

absl::Status CheckpointSaver::Start(Replica& replica, std::optional<double> validation_loss) {
  RETURN_IF_ERROR(replica.residual().Gather(context_));
  ASSIGN_OR_RETURN(const bool waits, Waits(replica));
  compares_only_ = false;
  std::optional<CheckpointContent> content;
  if (role_.writes) content = ContentOf(replica, identity_, validation_loss);
  beside_ = std::make_unique<CheckpointBeside>(replica, std::move(content), store_, context_.clock,
                                               waits ? HashThreads::kAll : HashThreads::kOne);
  return waits ? AwaitTogether(context_, beside_->work()).status() : absl::OkStatus();
}

absl::Status CheckpointSaver::StartToCompare(Replica& replica) {
  ASSIGN_OR_RETURN(const bool waits, Waits(replica));
  if (waits) return absl::OkStatus();
  compares_only_ = true;
  beside_ = std::make_unique<CheckpointBeside>(replica, std::nullopt, store_, context_.clock,
                                               HashThreads::kOne);
  return absl::OkStatus();
}

// A large replica takes seconds to hash, which is no hang.
void CheckpointSaver::AwaitCopied() {
  if (!busy()) return;
  while (!beside_->CopiedWithin(absl::Milliseconds(100))) {
    if (beside_->work().Stalled() < context_.patience) context_.progress.Worked();
  }
}

int64_t CheckpointSaver::BytesFor(Replica& replica) const {
  return role_.writes ? TensorBytesOf(ContentOf(replica, identity_, std::nullopt)) : 0;
}

absl::Status CheckpointSaver::Advance() {
  if (!busy()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::optional<SharedOutcome> done,
                   LookTogether(context_, beside_->work()));
  return done ? GoOn() : absl::OkStatus();
}

absl::Status CheckpointSaver::Finish() {
  while (busy()) {
    RETURN_IF_ERROR(AwaitTogether(context_, beside_->work()).status());
    RETURN_IF_ERROR(GoOn());
  }
  return absl::OkStatus();
}

absl::Status CheckpointSaver::FinishWithin(absl::Duration limit) {
  const absl::Duration until = context_.clock.Monotonic() + limit;
  while (busy()) {
    beside_->work().WaitFor(std::min(limit, kLook));
    RETURN_IF_ERROR(Advance());
    if (!busy()) break;
    const int32_t late = context_.clock.Monotonic() >= until ? 1 : 0;
    ASSIGN_OR_RETURN(const std::vector<int32_t> all, GatherValues(context_.collective, late));
    if (absl::c_any_of(all, [](int32_t one) { return one != 0; })) GiveUp();
  }
  return absl::OkStatus();
}

void CheckpointSaver::GiveUp() {
  if (!compares_only_) {
    LogWarning(absl::StrCat("gave up writing the checkpoint of step ", beside_->step().value(),
                            ", since the run stops"));
  }
  if (!beside_->Cancel(kGiveUpPatience)) static_cast<void>(beside_.release());
  beside_.reset();
}

// The piece of work in hand is done on all ranks.
absl::Status CheckpointSaver::GoOn() {
  if (!beside_->writes()) {
    ASSIGN_OR_RETURN(const SharedOutcome hashed,
                     ShareStatus(context_.collective, beside_->work().result()));
    RETURN_IF_ERROR(hashed.status);
    RETURN_IF_ERROR(CheckEqual(
        CheckFingerprintsEqual(context_.collective, beside_->fingerprint(), beside_->step())));
    if (compares_only_) {
      beside_.reset();
    } else {
      beside_->StartWriting();
    }
    return absl::OkStatus();
  }
  const std::unique_ptr<CheckpointBeside> done = std::move(beside_);
  return Conclude(done->step(), done->begun(), done->published()).status();
}

absl::StatusOr<SharedOutcome> CheckpointSaver::Conclude(
    Step step, absl::Duration begun, const absl::StatusOr<PublishedCheckpoint>& mine) {
  const bool fenced = absl::IsAborted(mine.status());  // the folder is another's
  ASSIGN_OR_RETURN(const SharedOutcome fences,
                   ShareStatus(context_.collective, fenced ? mine.status() : absl::OkStatus()));
  RETURN_IF_ERROR(fences.status);
  const bool wrote = role_.writes && mine.ok();
  ASSIGN_OR_RETURN(
      const std::vector<Copy> copies,
      GatherValues(context_.collective, Copy{mine.ok() ? mine->bytes : 0, wrote ? 1 : 0}));
  ASSIGN_OR_RETURN(SharedOutcome outcome, ShareStatus(context_.collective, mine.status()));
  const bool published = absl::c_any_of(copies, [](const Copy& copy) { return copy.published; });
  if (published) outcome.status = absl::OkStatus();
  if (published) last_step_ = step;
  const absl::Duration spent = context_.clock.Monotonic() - begun;
  // Another rank may have written it into the folder that this one has, too.
  const bool shared = !role_.writes && role_.writer >= 0 && copies[role_.writer].published;
  if (wrote || shared) {
    last_folder_ = wrote ? mine->folder : store_.Folder(step);
    last_folder_step_ = step;
    last_bytes_ = wrote ? mine->bytes : copies[role_.writer].bytes;
  }
  if (wrote && !mine->pruned.ok()) {
    LogWarning(absl::StrCat("old checkpoints were not removed: ", mine->pruned.message()));
  }
  if (role_.writes || shared) Report(mine.status(), step, spent);
  return outcome;
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
