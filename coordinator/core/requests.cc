// What operators ask of a job, in every state it may be in, and what they read in reply.
#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/holders.h"

namespace espalier {
namespace {

// "studio, macbook (3.2 GiB resident)".
std::string Holding(const Job& job) {
  int64_t bytes = 0;
  for (const TrackedRank& rank : job.world.ranks) bytes += rank.memory_bytes;
  const std::string nodes = NodeList(job.record.nodes);
  const double mebibytes = static_cast<double>(bytes) / (1 << 20);
  if (mebibytes < 1) return nodes;
  if (mebibytes < 1024) return absl::StrFormat("%s (%.0f MiB resident)", nodes, mebibytes);
  return absl::StrFormat("%s (%.1f GiB resident)", nodes, mebibytes / 1024);
}

// NOT_FOUND, with the jobs that exist.
absl::Status UnknownJob(const ClusterState& state, const JobId& id) {
  return absl::NotFoundError(absl::StrCat("there is no job '", id.text(), "'; there are ",
                                          state.jobs.size(), " jobs: see `espalier jobs`"));
}

// FAILED_PRECONDITION that names the state, its reason, and what is allowed.
absl::Status NotAllowed(const JobRecord& record, absl::string_view what,
                        absl::string_view allowed) {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", record.id.text(), " is ", JobStateName(record.state), " (",
                   record.reason, "), where ", what, " is not possible; allowed: ", allowed));
}

// FAILED_PRECONDITION: how the job ends is settled, its processes are leaving.
absl::Status Ending(const JobRecord& record) {
  return absl::FailedPreconditionError(
      absl::StrCat("job ", record.id.text(), " is ending (", record.verdict_reason,
                   "); its processes are leaving, nothing can be asked of it any more"));
}

// What a pause frees and what resuming will cost.
std::string ExplainSoftPause(const Job& job) {
  return absl::StrCat("finishes its step, then uses no processor; keeps memory on ", Holding(job),
                      "; resume takes less than a second and repeats nothing");
}

std::string ExplainHardPause(const Job& job) {
  return absl::StrCat("finishes its step, writes a checkpoint, then frees memory and nodes: ",
                      Holding(job), "; resume starts new processes from that checkpoint");
}

// What a request comes to: an error, or text for the operator.
using Result = absl::StatusOr<std::string>;

template <typename Request>
void Answer(Transaction& transaction, const Request& request,
            Result (*handle)(Transaction&, Job&, const Request&)) {
  Job* job = transaction.FindJob(request.job);
  Reply reply{.request = request.request, .job = request.job};
  if (job == nullptr) {
    reply.status = UnknownJob(transaction.state(), request.job);
  } else if (Result result = job->record.verdict == Verdict::kOpen || IsFinal(job->record.state)
                                 ? handle(transaction, *job, request)
                                 : Result(Ending(job->record));
             result.ok()) {
    reply.explanation = *std::move(result);
  } else {
    reply.status = std::move(result).status();
  }
  transaction.Do(std::move(reply));
}

bool AnyRankReady(const Job& job) {
  const auto& ranks = job.world.ranks;
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const TrackedRank& rank) { return rank.ready.has_value(); });
}

void SetDesired(Transaction& transaction, Job& job, DesiredState desired) {
  job.record.desired = desired;
  transaction.Persist(job);
}

// Stops what runs: by its directive where ranks can obey it, at once where none can yet.
void Stop(Transaction& transaction, Job& job, const DirectiveChange& change) {
  const bool hopeless = !AnyRankReady(job);
  ChangeDirective(transaction, job, change);
  if (hopeless) EndGeneration(transaction, job);
}

Result PauseHard(Transaction& transaction, Job& job) {
  const bool launching = job.record.state == JobState::kLaunching;
  const std::string text = launching && !AnyRankReady(job)
                               ? "it is starting and has nothing to keep; its processes are ended"
                               : ExplainHardPause(job);
  SetDesired(transaction, job, DesiredState::kPauseHard);
  transaction.Enter(job, JobState::kPausing, "pause --hard was asked for; stops with a checkpoint");
  const DirectiveChange change{.run_state = RunState::kStop, .checkpoint_before_stop = true};
  if (launching) {
    Stop(transaction, job, change);
  } else {
    ChangeDirective(transaction, job, change);
  }
  return text;
}

Result PauseLaunching(Transaction& transaction, Job& job, PauseKind kind) {
  if (kind == PauseKind::kHard) return PauseHard(transaction, job);
  SetDesired(transaction, job, DesiredState::kPauseSoft);
  ChangeDirective(transaction, job, {.run_state = RunState::kPause});
  return std::string("it is starting; it pauses in memory before its next step");
}

Result PauseRunning(Transaction& transaction, Job& job, PauseKind kind) {
  if (kind == PauseKind::kHard) return PauseHard(transaction, job);
  SetDesired(transaction, job, DesiredState::kPauseSoft);
  transaction.Enter(job, JobState::kPausing, "pause was asked for; the step is being finished");
  ChangeDirective(transaction, job, {.run_state = RunState::kPause});
  return ExplainSoftPause(job);
}

Result PausePausing(Transaction& transaction, Job& job, PauseKind kind) {
  const bool stopping = job.record.directive.run_state == RunState::kStop;
  if (!stopping && kind == PauseKind::kHard) return PauseHard(transaction, job);
  if (!stopping) return ExplainSoftPause(job);
  if (kind == PauseKind::kSoft && job.record.desired == DesiredState::kPauseHard) {
    return NotAllowed(job.record, "a soft pause", "resume and cancel");
  }
  // It was stopping for another reason, or a resume was waiting.
  SetDesired(transaction, job, DesiredState::kPauseHard);
  return std::string("it is stopping already; it stays paused without processes");
}

Result PauseWithout(Transaction& transaction, Job& job) {
  SetDesired(transaction, job, DesiredState::kPauseHard);
  transaction.Enter(job, JobState::kPausedHard, "paused while it waited; resume queues it again");
  return std::string("it was waiting and holds nothing; resume queues it again");
}

Result PauseBetween(Transaction& transaction, Job& job, PauseKind kind) {
  const bool hard = kind == PauseKind::kHard;
  SetDesired(transaction, job, hard ? DesiredState::kPauseHard : DesiredState::kPauseSoft);
  transaction.Note(job, hard ? "pause --hard was asked for" : "pause was asked for");
  if (hard && job.record.processes == Processes::kNone) Settle(transaction, job, "nothing runs");
  return std::string(hard ? "it has no running generation; it stays stopped"
                          : "it is between generations; the next one pauses before its first step");
}

Result Pause(Transaction& transaction, Job& job, const PauseRequested& request) {
  switch (job.record.state) {
    case JobState::kQueued:
      return PauseWithout(transaction, job);
    case JobState::kLaunching:
      return PauseLaunching(transaction, job, request.kind);
    case JobState::kRunning:
      return PauseRunning(transaction, job, request.kind);
    case JobState::kPausing:
      return PausePausing(transaction, job, request.kind);
    case JobState::kPausedSoft:
      return request.kind == PauseKind::kHard ? PauseHard(transaction, job) : ExplainSoftPause(job);
    case JobState::kPausedHard:
      return std::string("it is paused and holds nothing already");
    case JobState::kRegrouping:
    case JobState::kRecovering:
      return PauseBetween(transaction, job, request.kind);
    case JobState::kCancelling:
      return NotAllowed(job.record, "a pause", "nothing but waiting");
    case JobState::kCompleted:
    case JobState::kFailed:
    case JobState::kCancelled:
      return NotAllowed(job.record, "a pause", "nothing: it is final; submit it again");
  }
  return absl::InternalError("unknown state");
}

Result ResumePausing(Transaction& transaction, Job& job) {
  SetDesired(transaction, job, DesiredState::kRun);
  if (job.record.directive.run_state == RunState::kStop) {
    transaction.Note(job, "resume was asked for; it queues again once it has stopped");
    return std::string();
  }
  transaction.Enter(job, JobState::kRunning, "resume was asked for");
  ChangeDirective(transaction, job, {.run_state = RunState::kRun});
  return std::string();
}

// The state that is held elsewhere is given up, where the job is in need of it.
void GiveUpState(Transaction& transaction, Job& job) {
  if (!NeedsHolder(job.record)) return;
  const std::string text = absl::StrCat(
      "goes on without ", StateIsGone(job.record)
                              ? "the state that is gone"
                              : absl::StrCat("step ", NewestHeld(job.record).value(), " on ",
                                             NodeList(HoldersOfNewest(job.record))));
  ForgetHolders(job.record);
  transaction.Note(job, absl::StrCat("resume --from-scratch was asked for; ", text));
  transaction.QueueChanged();
}

Result Resume(Transaction& transaction, Job& job, const ResumeRequested& request) {
  if (request.from_scratch) {
    if (job.record.processes != Processes::kNone) {
      return NotAllowed(job.record, "a resume from scratch",
                        "it while the job waits for a node that holds its state, or is paused "
                        "without processes");
    }
    if (!IsFinal(job.record.state)) GiveUpState(transaction, job);
  }
  switch (job.record.state) {
    case JobState::kQueued:
    case JobState::kRunning:
      if (job.record.desired != DesiredState::kRun)
        SetDesired(transaction, job, DesiredState::kRun);
      return std::string();
    case JobState::kLaunching:
      SetDesired(transaction, job, DesiredState::kRun);
      ChangeDirective(transaction, job, {.run_state = RunState::kRun});
      return std::string();
    case JobState::kPausing:
    case JobState::kPausedSoft:
      return ResumePausing(transaction, job);
    case JobState::kPausedHard:
      SetDesired(transaction, job, DesiredState::kRun);
      transaction.Enter(job, JobState::kQueued,
                        IsExternal(job.record) ? "resume was asked for; start its mpirun again"
                                               : "resume was asked for; waits for nodes");
      return std::string();
    case JobState::kRegrouping:
    case JobState::kRecovering:
      SetDesired(transaction, job, DesiredState::kRun);
      return std::string();
    case JobState::kCancelling:
      return NotAllowed(job.record, "a resume", "nothing but waiting");
    case JobState::kCompleted:
    case JobState::kFailed:
    case JobState::kCancelled:
      return NotAllowed(job.record, "a resume", "nothing: it is final; submit it again");
  }
  return absl::InternalError("unknown state");
}

Result CancelAtOnce(Transaction& transaction, Job& job) {
  SetDesired(transaction, job, DesiredState::kCancel);
  transaction.Enter(job, JobState::kCancelled, "cancel was asked for; nothing of it runs");
  return std::string();
}

Result CancelRunning(Transaction& transaction, Job& job, const CancelRequested& request) {
  SetDesired(transaction, job, DesiredState::kCancel);
  const bool launching = job.record.state == JobState::kLaunching;
  transaction.Enter(job, JobState::kCancelling,
                    request.checkpoint ? "cancel was asked for; stops with a checkpoint"
                                       : "cancel was asked for");
  const DirectiveChange change{.run_state = RunState::kStop,
                               .checkpoint_before_stop = request.checkpoint};
  if (launching) {
    Stop(transaction, job, change);
  } else {
    ChangeDirective(transaction, job, change);
  }
  return std::string();
}

Result Cancel(Transaction& transaction, Job& job, const CancelRequested& request) {
  const bool runs = job.record.processes != Processes::kNone;
  switch (job.record.state) {
    case JobState::kQueued:
    case JobState::kPausedHard:
      return CancelAtOnce(transaction, job);
    case JobState::kLaunching:
    case JobState::kRunning:
    case JobState::kPausing:
    case JobState::kPausedSoft:
    case JobState::kRegrouping:
    case JobState::kRecovering:
      return runs ? CancelRunning(transaction, job, request) : CancelAtOnce(transaction, job);
    case JobState::kCancelling:
    case JobState::kCancelled:
      return std::string();
    case JobState::kCompleted:
    case JobState::kFailed:
      return NotAllowed(job.record, "a cancel", "nothing: it is final");
  }
  return absl::InternalError("unknown state");
}

Result AskCheckpoint(Transaction& transaction, Job& job, const CheckpointRequested&) {
  switch (job.record.state) {
    case JobState::kLaunching:
    case JobState::kRunning:
    case JobState::kPausedSoft:
      AskForCheckpoint(transaction, job);
      return std::string();
    case JobState::kPausing:
      if (job.record.directive.run_state == RunState::kPause) AskForCheckpoint(transaction, job);
      return std::string();  // a stop for a pause writes one anyway
    case JobState::kQueued:
    case JobState::kPausedHard:
    case JobState::kRegrouping:
    case JobState::kRecovering:
    case JobState::kCancelling:
      return NotAllowed(job.record, "a checkpoint", "waiting until it runs");
    case JobState::kCompleted:
    case JobState::kFailed:
    case JobState::kCancelled:
      return NotAllowed(job.record, "a checkpoint", "nothing: it is final");
  }
  return absl::InternalError("unknown state");
}

}  // namespace

void OnRequest(Transaction& transaction, const PauseRequested& request) {
  Answer(transaction, request, &Pause);
}
void OnRequest(Transaction& transaction, const ResumeRequested& request) {
  Answer(transaction, request, &Resume);
}
void OnRequest(Transaction& transaction, const CancelRequested& request) {
  Answer(transaction, request, &Cancel);
}
void OnRequest(Transaction& transaction, const CheckpointRequested& request) {
  Answer(transaction, request, &AskCheckpoint);
}

}  // namespace espalier
