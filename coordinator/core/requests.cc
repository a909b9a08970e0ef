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
#include "coordinator/core/liveness.h"

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

// What the operator is told.
struct Said {
  Said() = default;
  Said(std::string text) : text(std::move(text)) {}  // NOLINT: most answers are a text alone
  std::string text;
  bool nothing_to_do = false;
};

// What a request comes to: an error, or text for the operator.
using Result = absl::StatusOr<Said>;

// The request had been obeyed before it came. `and_what`: what the state does not say.
Result Already(const JobRecord& record, absl::string_view and_what = "") {
  Said said(absl::StrCat("job ", record.id.text(), " is ", JobStateName(record.state),
                         and_what.empty() ? " already" : "", " (", record.reason, ")", and_what,
                         "; nothing was to do"));
  said.nothing_to_do = true;
  return said;
}

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
    reply.explanation = std::move(result->text);
    reply.nothing_to_do = result->nothing_to_do;
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
  transaction.Enter(job, JobState::kPausing,
                    absl::StrCat("pause --hard was asked for", kStopsWithCheckpoint));
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
  if (job.record.desired == DesiredState::kPauseSoft) {
    return Already(job.record, " and pauses before its next step already");
  }
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
  if (!stopping) return Already(job.record);
  if (job.record.desired == DesiredState::kPauseHard) {
    return kind == PauseKind::kHard ? Already(job.record)
                                    : NotAllowed(job.record, "a soft pause", "resume and cancel");
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
  const DesiredState desired = hard ? DesiredState::kPauseHard : DesiredState::kPauseSoft;
  if (job.record.desired == desired) return Already(job.record, " and pauses already");
  SetDesired(transaction, job, desired);
  const bool leaves =
      job.record.state == JobState::kRegrouping && job.record.processes == Processes::kRunning;
  if (hard && leaves) {
    // It was to go on from memory, which a machine that is switched off does not keep.
    transaction.Note(job, absl::StrCat("pause --hard was asked for", kStopsWithCheckpoint));
    ChangeDirective(transaction, job,
                    {.run_state = RunState::kStop, .checkpoint_before_stop = true});
    return ExplainHardPause(job);
  }
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
      return request.kind == PauseKind::kHard ? PauseHard(transaction, job) : Already(job.record);
    case JobState::kPausedHard:
      return Already(job.record);
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
  const DesiredState before = job.record.desired;
  if (before == DesiredState::kRun) return Already(job.record, " and resumes when it has stopped");
  SetDesired(transaction, job, DesiredState::kRun);
  if (job.record.directive.run_state == RunState::kStop) {
    transaction.Note(job, "resume was asked for; it queues again once it has stopped");
    return std::string();
  }
  // Not that it was asked for: it stays the reason for as long as the job runs.
  const std::string nodes = NodeList(job.record.nodes);
  transaction.Enter(job, JobState::kRunning,
                    job.record.state == JobState::kPausedSoft
                        ? absl::StrCat("resumed at step ", job.record.step.value(), " on ", nodes)
                        : absl::StrCat("runs on ", nodes, "; resumed before it had paused"));
  ChangeDirective(transaction, job, {.run_state = RunState::kRun});
  return std::string();
}

// The state that is held elsewhere is given up, where the job is in need of it; whether it was.
bool GiveUpState(Transaction& transaction, Job& job) {
  const Holders holders(transaction.state(), job.record);
  if (!holders.needed()) return false;
  const std::string text = absl::StrCat(
      "goes on without ", holders.gone() ? "the state that is gone" : holders.Describe());
  ForgetNewest(job.record, holders.newest() > NewestPublished(job.record));
  transaction.Note(job, absl::StrCat("resume --from-scratch was asked for; ", text));
  transaction.QueueChanged();
  return true;
}

// Of a job that needs no more than to be let go on.
Result ResumeAsItIs(Transaction& transaction, Job& job) {
  if (job.record.desired == DesiredState::kRun) return Already(job.record);
  SetDesired(transaction, job, DesiredState::kRun);
  if (job.record.state == JobState::kLaunching) {
    ChangeDirective(transaction, job, {.run_state = RunState::kRun});
  }
  return std::string();
}

Result Resume(Transaction& transaction, Job& job, const ResumeRequested& request) {
  if (request.from_scratch) {
    if (job.record.processes != Processes::kNone) {
      return NotAllowed(job.record, "a resume from scratch",
                        "it while the job waits for a node that holds its state, or is paused "
                        "without processes");
    }
    const bool given_up = !IsFinal(job.record.state) && GiveUpState(transaction, job);
    if (given_up && job.record.desired == DesiredState::kRun) return std::string();
  }
  switch (job.record.state) {
    case JobState::kQueued:
    case JobState::kLaunching:
    case JobState::kRunning:
    case JobState::kRegrouping:
    case JobState::kRecovering:
      return ResumeAsItIs(transaction, job);
    case JobState::kPausing:
    case JobState::kPausedSoft:
      return ResumePausing(transaction, job);
    case JobState::kPausedHard:
      SetDesired(transaction, job, DesiredState::kRun);
      transaction.Enter(job, JobState::kQueued,
                        IsExternal(job.record) ? "resume was asked for; start its mpirun again"
                                               : "resume was asked for; waits for nodes");
      return std::string();
    case JobState::kCancelling:
      return NotAllowed(job.record, "a resume", "nothing but waiting");
    case JobState::kCompleted:
    case JobState::kFailed:
    case JobState::kCancelled:
      return NotAllowed(
          job.record, "a resume",
          "nothing: it is final; submit it again, with --set checkpoint.directory= and "
          "the folder of its checkpoints (espalier job shows it) to go on from them");
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
  const bool killed =
      job.record.processes == Processes::kEnding || (launching && !AnyRankReady(job));
  const bool writes = request.checkpoint && !killed;
  const std::string wait(LeaseWait(job.record.reason));
  transaction.Enter(job, JobState::kCancelling,
                    absl::StrCat("cancel was asked for", writes ? kStopsWithCheckpoint : "", wait));
  const DirectiveChange change{.run_state = RunState::kStop, .checkpoint_before_stop = writes};
  if (launching) {
    Stop(transaction, job, change);
  } else {
    ChangeDirective(transaction, job, change);
  }
  if (request.checkpoint && killed)
    return Said("its processes are ended; they write no checkpoint");
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
      return Already(job.record);
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
      if (job.record.directive.run_state == RunState::kPause) {
        AskForCheckpoint(transaction, job);
        return std::string();
      }
      if (!job.record.directive.checkpoint_before_stop) {
        return NotAllowed(job.record, "a checkpoint", "waiting until it runs");
      }
      return Said("it is about to write one");
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
