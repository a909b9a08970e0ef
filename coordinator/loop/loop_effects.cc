// The loop's way out: effects are applied here and nowhere else, in the order that loop.h states.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/config/job_file.h"
#include "common/observe/log.h"
#include "coordinator/core/facts.h"
#include "coordinator/journal/record.h"
#include "coordinator/launcher/mpirun.h"
#include "coordinator/loop/loop.h"
#include "coordinator/loop/messages.h"

namespace espalier {
namespace {

// Whether the journal may be written again without anybody's help: a full disk, one that is busy,
// and for a while any error of the disk. A damaged or read-only file stays so, and an event that is
// there already means that two of us write it.
bool MayPass(const absl::Status& status, absl::Duration tried, absl::Duration patience) {
  if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) return true;
  return absl::IsInternal(status) && tried < patience;
}

// A copy for people, whole or not there. Not synced: the disk would hold up every decision.
absl::Status WriteCopy(FileSystem& files, const std::string& path, absl::string_view text) {
  const std::string temporary = path + ".tmp";
  ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(temporary));
  RETURN_IF_ERROR(file->Append({reinterpret_cast<const std::byte*>(text.data()), text.size()}));
  RETURN_IF_ERROR(file->Close());
  return files.Rename(temporary, path);
}

}  // namespace

void Loop::Apply() {
  const bool decided = !batch_.empty() || !effects_.empty();
  const bool journaled = batch_.empty() || Commit(batch_);
  if (!journaled) return;
  for (const EventRow& row : batch_.events) {
    LogInfo(absl::StrCat("job ", row.job.text(), " ",
                         JobStateName(static_cast<JobState>(row.state)), ": ", row.text));
  }
  for (const JobId& job : batch_.forgotten) Forget(job);
  batch_ = {};
  if (decided || parts_.clock->Monotonic() >= next_publication_) Publish();
  for (const Effect& effect : std::exchange(effects_, {})) {
    std::visit([this](const auto& one) { ApplyOne(one); }, effect);
  }
  for (const auto& read_on : std::exchange(taken_, {})) read_on();
  for (const absl::Duration age : parts_.inbox->AgesOfTaken()) stats_.handling.Add(age);
}

bool Loop::Commit(const JournalBatch& batch) {
  const absl::Duration first = parts_.clock->Monotonic();
  for (;;) {
    const absl::Duration before = parts_.clock->Monotonic();
    const absl::Status status = parts_.journal->Commit(batch);
    stats_.journal.Add(parts_.clock->Monotonic() - before);
    if (status.ok()) return true;
    ++stats_.journal_failures;
    parts_.observer->Stalled(stats_);
    if (!MayPass(status, before - first, options_.journal_patience)) {
      journal_status_ = absl::Status(
          status.code(),
          absl::StrCat("cannot write the journal in ", options_.state_dir, ": ", status.message(),
                       "; espalierd stops here, and goes on from what was written when it is "
                       "started again with the disk in order"));
      stopping_ = true;
      return false;
    }
    LogError(absl::StrCat(
        "cannot write the journal, nothing is decided until it can be written: ", status.message(),
        absl::IsResourceExhausted(status) ? "; free space on the disk of "
                                          : "; see to the disk of ",
        options_.state_dir));
    if (stopping_) return false;
    parts_.clock->Sleep(options_.journal_retry);
  }
}

void Loop::Publish() {
  parts_.observer->Publish({.state = state_,
                            .changed = touched_,
                            .monotonic = parts_.clock->Monotonic(),
                            .stats = stats_});
  touched_.clear();
  next_publication_ = parts_.clock->Monotonic() + options_.publish_interval;
}

int64_t Loop::MemoryLimitOf(const NodeName& name) const {
  const Node* const node = state_.nodes.Find(name);
  if (node != nullptr && node->record.joined) return node->record.joined->memory_limit_bytes();
  for (const v1::NodeSpec& named : options_.cluster.nodes()) {
    if (named.name() == name.text()) return named.memory_limit_bytes();
  }
  return 0;
}

void Loop::ApplyOne(const PersistJob&) {}
void Loop::ApplyOne(const ForgetJob&) {}
void Loop::ApplyOne(const PersistNode&) {}
void Loop::ApplyOne(const AppendEvent&) {}

void Loop::ApplyOne(const Welcome& effect) {
  const auto job = state_.jobs.find(effect.worker.job);
  if (job == state_.jobs.end()) return;
  v1::AttachResponse welcome =
      WelcomeMessage(effect, job->second.record, MemoryLimitOf(effect.node), options_.state_dir);
  welcome.mutable_welcome()->set_world_secret(HmacSha256Hex(
      world_key_, absl::StrCat(effect.worker.job.text(), "/", effect.worker.generation.value())));
  parts_.streams->Send(effect.stream, std::move(welcome));
  parts_.launcher->NoteWorker({effect.worker.job, effect.worker.generation},
                              {effect.node, effect.pid});
  parts_.observer->Attached(effect.worker, parts_.clock->Monotonic());
}

void Loop::ApplyOne(const SendDirective& effect) {
  v1::AttachResponse response;
  *response.mutable_directive() = ToProto(effect.directive);
  parts_.streams->Send(effect.stream, std::move(response));
}

void Loop::ApplyOne(const RenewLease& effect) {
  v1::AttachResponse response;
  response.mutable_renewal()->set_beat(effect.beat);
  parts_.streams->Send(effect.stream, std::move(response));
}

void Loop::ApplyOne(const CloseStream& effect) {
  parts_.streams->Close(effect.stream, effect.status);
}

void Loop::ApplyOne(const DropMemory& effect) {
  v1::AgentCommand command;
  command.mutable_drop()->set_job_id(effect.job.text());
  command.mutable_drop()->set_history(effect.history);
  command.mutable_drop()->set_step(effect.step.value());
  parts_.agents->Send(effect.stream, std::move(command));
}

void Loop::ApplyOne(const Rehearse& effect) {
  const auto job = state_.jobs.find(effect.job);
  const Node* const node = state_.nodes.Find(effect.node);
  if (job == state_.jobs.end() || node == nullptr) return;
  v1::AgentCommand command;
  v1::RehearseJob& rehearse = *command.mutable_rehearse();
  rehearse.set_job_id(effect.job.text());
  *rehearse.mutable_spec() = job->second.record.spec;
  rehearse.set_device(node->spec.device());
  rehearse.set_memory_limit_bytes(node->spec.memory_limit_bytes());
  rehearse.set_worker(NamedWorker(options_.cluster, node->spec));
  const std::vector<TrackedRank>& ranks = job->second.world.ranks;
  if (!ranks.empty()) rehearse.set_data_sha256(ranks.front().data_sha256);
  parts_.agents->Send(effect.stream, std::move(command));
}

// The process is held at its gate until the journal knows it: killed in between, espalierd leaves
// neither a process that it does not know nor one that it knows and that does not end.
void Loop::ApplyOne(const Launch& effect) {
  const auto job = state_.jobs.find(effect.key.job);
  if (job == state_.jobs.end()) return;
  absl::StatusOr<ProcessIdentity> process =
      parts_.launcher->Prepare({effect.key, effect.nodes, job->second.record.spec});
  if (!process.ok()) {
    later_.push_back(LaunchFailed{effect.key, std::string(process.status().message())});
    return;
  }
  if (!Commit({.launches = {{effect.key, *process}}})) return;
  launches_.insert(effect.key);
  parts_.launcher->Release(effect.key);
}

void Loop::ApplyOne(const Kill& effect) { parts_.launcher->End(effect.key); }

void Loop::ApplyOne(const Reply& effect) {
  const auto waiting = waiting_.find(effect.request);
  if (waiting == waiting_.end()) return;
  const Callback reply = std::move(waiting->second);
  waiting_.erase(waiting);
  if (submissions_.erase(effect.request) > 0 && effect.status.ok()) {
    const absl::Status written = WriteJobFiles(effect.job);
    if (!written.ok())
      LogWarning(absl::StrCat("cannot keep a copy of the job file: ", written.ToString()));
  }
  if (!effect.status.ok()) return reply(effect.status);
  reply(Answer{.job_id = effect.job.text(),
               .explanation = effect.explanation,
               .nothing_to_do = effect.nothing_to_do});
}

// Its logs go with it; checkpoints and the job's file stay.
void Loop::Forget(const JobId& id) {
  last_states_.erase(id);
  const std::string logs = absl::StrCat(options_.state_dir, "/jobs/", id.text(), "/logs");
  const absl::Status removed = parts_.files->Remove(logs);
  if (!removed.ok()) LogWarning(absl::StrCat("old logs are left behind: ", removed.message()));
}

// The journal has the job itself.
absl::Status Loop::WriteJobFiles(const JobId& id) {
  const JobRecord& record = state_.jobs.at(id).record;
  const std::string folder = absl::StrCat(options_.state_dir, "/jobs/", id.text());
  RETURN_IF_ERROR(parts_.files->MakeDirectory(folder));
  RETURN_IF_ERROR(WriteCopy(*parts_.files, folder + "/job.yaml", JobSpecToYaml(record.spec)));
  if (record.yaml.empty()) return absl::OkStatus();
  return WriteCopy(*parts_.files, folder + "/submitted.yaml", record.yaml);
}

}  // namespace espalier
