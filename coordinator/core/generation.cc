#include "coordinator/core/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/holders.h"
#include "coordinator/core/liveness.h"

namespace espalier {
namespace {

// Every stream; the workers exit upon it.
void FenceAll(Transaction& transaction, Job& job, const std::string& how) {
  const JobRecord& record = job.record;
  for (TrackedRank& rank : job.world.ranks) {
    if (!rank.stream) continue;
    transaction.Do(CloseStream{
        *rank.stream, absl::FailedPreconditionError(absl::StrCat(
                          "generation ", record.generation.value(), " of job ", record.id.text(),
                          " has ended (", how, "); this worker must exit"))});
    transaction.state().streams.erase(*rank.stream);
    rank.stream.reset();
  }
}

std::string ReadyReason(const JobRecord& record, Step before) {
  std::string text =
      absl::StrCat("runs on ", NodeList(record.nodes), " from step ", record.step.value(),
                   " (generation ", record.generation.value(), ")");
  if (before > record.step) {
    absl::StrAppend(
        &text, "; goes back from step ", before.value(),
        ", which no node holds; to be repeated: ", before.value() - record.step.value());
  }
  return text;
}

// The ranks have agreed on an older state than the newest that was reported: later checkpoints are
// damaged or gone, and what was evaluated will be again.
void ForgetWhatIsRepeated(JobRecord& record, Step start) {
  if (record.last_step && record.last_step->step >= start) {
    record.last_step->step = Step(start.value() - 1);
  }
  if (record.evaluation && record.evaluation->step > record.step) record.evaluation.reset();
  if (!record.checkpoint || record.checkpoint->step <= record.step) return;
  if (start == Step(0)) {
    record.checkpoint.reset();
  } else {
    record.checkpoint->step = start;
    record.checkpoint->path.clear();
  }
}

// A stop was obeyed, or the processes ended while obeying it.
void SettlePausing(Transaction& transaction, Job& job) {
  const JobRecord& record = job.record;
  if (record.desired == DesiredState::kRun) {
    transaction.Enter(job, JobState::kQueued,
                      absl::StrCat("stopped (", record.reason, "); waits for nodes to continue"));
    return;
  }
  absl::string_view cause = record.reason;
  absl::ConsumeSuffix(&cause, kStopsWithCheckpoint);
  transaction.Enter(job, JobState::kPausedHard,
                    absl::StrCat("paused at step ", record.step.value(), " (", cause,
                                 "); nodes are free; resume continues ",
                                 ResumesFrom(transaction.state(), record)));
}

void SettleRecovering(Transaction& transaction, Job& job) {
  const JobRecord& record = job.record;
  if (record.desired == DesiredState::kPauseHard) {
    transaction.Enter(
        job, JobState::kPausedHard,
        absl::StrCat("paused as asked, after a fault (", record.reason, "); resume continues ",
                     ResumesFrom(transaction.state(), record)));
  } else if (IsExternal(record)) {
    transaction.Enter(
        job, JobState::kQueued,
        absl::StrCat("its hand-started mpirun was lost (", record.reason,
                     "); start it again to continue ", ResumesFrom(transaction.state(), record)));
  } else {
    transaction.QueueChanged();  // the queue starts it when the back-off is over
  }
}

// Nobody saw it, and perhaps it ended well: no fault of a node or of the job. But when it happens
// again without a step in between, the job may be what brings the coordinator down.
void OnUnseenEnd(Transaction& transaction, Job& job, const std::string& how) {
  JobRecord& record = job.record;
  const std::string reason = absl::StrCat("ended while espalierd was away (", how, ")");
  if (record.state == JobState::kPausedSoft) {
    record.desired = DesiredState::kPauseHard;
    transaction.Enter(job, JobState::kPausing, reason);
    // What is resumed before the end is certain starts anew.
    ChangeDirective(transaction, job, {.run_state = RunState::kStop});
    return;
  }
  NoteAdvance(record);
  const bool restarts = record.desired != DesiredState::kPauseHard && !IsExternal(record);
  if (restarts && ++record.unseen_ends > 1) {
    return CountRestart(transaction, job, absl::StrCat(reason, ", again without a new step"));
  }
  record.retry_at = transaction.now();
  transaction.Enter(job, JobState::kRecovering, reason);
}

void SettleVerdict(Transaction& transaction, Job& job) {
  const JobRecord& record = job.record;
  transaction.Enter(job,
                    record.verdict == Verdict::kFail ? JobState::kFailed : JobState::kCompleted,
                    record.verdict_reason);
}

}  // namespace

void ResetWorld(Transaction& transaction, Job& job, size_t ranks) {
  const JobRecord& record = job.record;
  job.world = World{};
  job.world.launch_deadline =
      transaction.now() + absl::Seconds(record.spec.launch().timeout_seconds());
  for (size_t i = 0; i < ranks; ++i) {
    job.world.ranks.push_back(TrackedRank{.node = record.nodes[i],
                                          .progressed_at = transaction.now(),
                                          .heard_at = transaction.now()});
  }
}

void StartGeneration(Transaction& transaction, Job& job, const std::vector<NodeName>& nodes,
                     const std::string& reason) {
  JobRecord& record = job.record;
  ESPALIER_CHECK(record.processes == Processes::kNone, "one generation at a time");
  record.generation = record.generation.next();
  record.nodes = nodes;
  record.processes = Processes::kRunning;
  if (!IsExternal(record)) NoteLaunch(record);
  FirstDirective(transaction, job);
  ResetWorld(transaction, job, nodes.size());
  transaction.Enter(job, JobState::kLaunching, reason);
  if (IsExternal(record)) return;
  transaction.Do(Launch{.key = {record.id, record.generation}, .nodes = nodes});
}

void OnEveryRankReady(Transaction& transaction, Job& job) {
  JobRecord& record = job.record;
  const Step before = record.step;
  NoteAdvance(record);
  record.step = Step(0);
  for (TrackedRank& rank : job.world.ranks) {
    record.step = std::max(record.step, std::max(*rank.ready, rank.counters.step));
    rank.progressed_at = transaction.now();
  }
  if (record.step != before) record.kept = 0;
  ForgetWhatIsRepeated(record, *job.world.ranks.front().ready);
  job.figures = Figures();
  for (const std::string& news : job.health.End()) transaction.Note(job, news);
  record.warnings.clear();
  if (record.desired == DesiredState::kPauseSoft) {
    transaction.Enter(job, JobState::kPausing,
                      absl::StrCat(ReadyReason(record, before), "; pauses as asked"));
    CheckPaused(transaction, job);
    return;
  }
  transaction.Enter(job, JobState::kRunning, ReadyReason(record, before));
}

void CheckPaused(Transaction& transaction, Job& job) {
  const JobRecord& record = job.record;
  if (record.state != JobState::kPausing || record.directive.run_state != RunState::kPause ||
      !EveryRankObeyed(job)) {
    return;
  }
  transaction.Enter(job, JobState::kPausedSoft,
                    absl::StrCat("paused in memory before step ", record.step.value(), " on ",
                                 NodeList(record.nodes)));
}

void OnFault(Transaction& transaction, Job& job, const Fault& fault) {
  JobRecord& record = job.record;
  if (record.verdict != Verdict::kOpen || record.state == JobState::kCancelling ||
      record.processes == Processes::kEnding) {
    transaction.Note(job, fault.reason);
    return EndGeneration(transaction, job);
  }
  const bool restarts = record.desired != DesiredState::kPauseHard && !IsExternal(record);
  const bool paused = record.state == JobState::kPausedSoft;
  if (restarts && !paused && GoOnWithoutUnfit(transaction, job, fault)) {
    return EndGeneration(transaction, job);
  }
  const bool aside = paused && !SetUnfitAside(transaction, job, fault).empty();
  if (fault.culprit && !aside) BlameNode(transaction, job, *fault.culprit, fault.reason);
  if (paused) {
    record.desired = DesiredState::kPauseHard;
    transaction.Enter(job, JobState::kPausing, absl::StrCat(fault.reason, " during the pause"));
    ChangeDirective(transaction, job, {.run_state = RunState::kStop});
  } else if (!restarts) {
    transaction.Enter(job, JobState::kRecovering, fault.reason);
  } else {
    CountRestart(transaction, job, LeaveOneOut(transaction, job, fault));
  }
  EndGeneration(transaction, job);
}

void SettleFailure(Transaction& transaction, Job& job) {
  job.world.failed_at.reset();
  const Judgement judgement = JudgeFailure(transaction.state(), job);
  transaction.Persist(job);
  if (judgement.ends_job && job.record.state != JobState::kCancelling) {
    Decide(transaction, job, Verdict::kFail, judgement.fault.reason);
    EndGeneration(transaction, job);
    return;
  }
  // Its end was decided when another rank missed it; only now the node is known.
  const bool late = job.record.state == JobState::kRecovering &&
                    job.record.processes == Processes::kEnding &&
                    job.record.verdict == Verdict::kOpen;
  if (late && SetUnfitAside(transaction, job, judgement.fault).empty() && judgement.fault.culprit) {
    BlameNode(transaction, job, *judgement.fault.culprit, judgement.fault.reason);
  }
  OnFault(transaction, job, judgement.fault);
}

void WatchJob(Transaction& transaction, Job& job) {
  const JobRecord& record = job.record;
  const World& world = job.world;
  if (record.processes == Processes::kNone) return;
  if (world.exited_at) {
    if (LastWordsAreHeard(job, transaction.now())) {
      OnGone(transaction, job, std::string(world.exit_reason));
    }
    return;
  }
  if (record.processes == Processes::kEnding) return;
  if (world.failed_at && transaction.now() - *world.failed_at > kLastWordsWait) {
    SettleFailure(transaction, job);
    return;
  }
  if (world.finished_at) {
    if (transaction.now() - *world.finished_at > FailureTimeout(record)) {
      transaction.Note(job, "its processes did not leave by themselves and are ended");
      EndGeneration(transaction, job);
    }
    return;
  }
  if (IsLaunchOverdue(job, transaction.now())) {
    OnFault(transaction, job, DescribeLaunchTimeout(job));
    return;
  }
  if (const auto fault = FindStuckRank(job, transaction.now())) OnFault(transaction, job, *fault);
}

void CheckGone(Transaction& transaction, Job& job) {
  const World& world = job.world;
  const auto left = [](const TrackedRank& rank) { return rank.outcome || !rank.stream; };
  const auto ended = [](const TrackedRank& rank) { return rank.outcome && !rank.stream; };
  if (job.record.processes == Processes::kNone) return;
  if (world.exited_at && std::all_of(world.ranks.begin(), world.ranks.end(), left)) {
    OnGone(transaction, job, std::string(world.exit_reason));
  } else if (IsExternal(job.record) && std::all_of(world.ranks.begin(), world.ranks.end(), ended)) {
    OnGone(transaction, job, "its hand-started mpirun has ended");
  }
}

void Decide(Transaction& transaction, Job& job, Verdict verdict, const std::string& reason) {
  JobRecord& record = job.record;
  if (record.verdict != Verdict::kOpen) return;
  record.verdict = verdict;
  record.verdict_reason = reason;
  job.world.finished_at = transaction.now();
  if (record.processes == Processes::kNone) return;
  transaction.Note(job, absl::StrCat(reason, "; its processes end"));
}

void EndGeneration(Transaction& transaction, Job& job) {
  JobRecord& record = job.record;
  if (record.processes != Processes::kRunning) return;
  record.processes = Processes::kEnding;
  transaction.Persist(job);
  if (IsExternal(record)) {
    LeaveToThemselves(transaction, job);
    OnGone(transaction, job, std::string(job.world.exit_reason));
    return;
  }
  if (!job.world.exited_at) transaction.Do(Kill{{record.id, record.generation}});
}

void LeaveToThemselves(Transaction& transaction, Job& job) {
  if (job.world.exited_at) return;
  job.world.exited_at = transaction.now();
  job.world.exit_reason = "its workers were told to exit";
}

namespace {

// Whether the end was wanted, and whose fault it is otherwise. `before`: the processes as they
// were.
void JudgeEnd(Transaction& transaction, Job& job, Processes before, const std::string& how) {
  const JobRecord& record = job.record;
  std::optional<Rank> first_lost = FirstVanished(job);
  if (!first_lost) first_lost = job.world.exit_culprit;
  // What is known already says more.
  if (job.world.failed_at || record.verdict == Verdict::kFail) first_lost.reset();
  const bool unheard = job.world.unheard_since_restart;
  std::string what = how;
  if (first_lost) what = absl::StrCat(DescribeLoss(job, *first_lost), "; ", how);
  const bool open = record.verdict == Verdict::kOpen && before == Processes::kRunning;
  const bool expected = StopObeyed(job) || record.state == JobState::kCancelling;
  FenceAll(transaction, job, what);
  if (open && unheard && !expected) {
    OnUnseenEnd(transaction, job, how);
  } else if (open && !expected && job.world.failed_at) {
    SettleFailure(transaction, job);
  } else if (open && !expected) {
    OnFault(transaction, job, {.reason = what, .culprit = first_lost});
  }
}

// Without the wait of a coordinator that is over.
void StopWaiting(JobRecord& record) {
  record.reason.resize(record.reason.size() - LeaseWait(record.reason).size());
}

// Everything that follows from the end does so now, but for what would give the job or its nodes a
// next generation.
void AwaitLeases(Transaction& transaction, Job& job, const OpenLeases& open,
                 const std::string& how) {
  JobRecord& record = job.record;
  if (std::exchange(job.world.awaits_leases, true)) return;
  JudgeEnd(transaction, job, record.processes, how);
  record.processes = Processes::kEnding;
  const absl::Time wall = open.until + transaction.state().wall_ahead;
  const std::string until = absl::FormatTime("%H:%M:%S UTC", wall, absl::UTCTimeZone());
  const std::string wait =
      absl::StrCat(until, " for ", NodeList(open.nodes),
                   ", which may still be training: nobody has confirmed that its processes ended");
  StopWaiting(record);
  absl::StrAppend(&record.reason, kWaitsForLeases, wait);
  transaction.Note(job, absl::StrCat("waits until ", wait));
}

}  // namespace

void OnGone(Transaction& transaction, Job& job, const std::string& how) {
  JobRecord& record = job.record;
  if (record.processes == Processes::kNone) return;
  if (const OpenLeases open = FindOpenLeases(job, transaction.now()); !open.nodes.empty()) {
    AwaitLeases(transaction, job, open, how);
    return;
  }
  const Processes before = std::exchange(record.processes, Processes::kNone);
  job.interruption.Ended(transaction.now());
  StopWaiting(record);
  transaction.Persist(job);
  if (!job.world.awaits_leases) JudgeEnd(transaction, job, before, how);
  Settle(transaction, job, how);
  transaction.QueueChanged();
  job.world = World{};
}

void Settle(Transaction& transaction, Job& job, const std::string& how) {
  const JobRecord& record = job.record;
  ESPALIER_CHECK(record.processes == Processes::kNone, "settles when nothing runs");
  if (record.verdict != Verdict::kOpen) {
    SettleVerdict(transaction, job);
    return;
  }
  switch (record.state) {
    case JobState::kPausing:
      SettlePausing(transaction, job);
      return;
    case JobState::kRecovering:
      SettleRecovering(transaction, job);
      return;
    case JobState::kRegrouping:
      if (record.desired == DesiredState::kPauseHard) SettlePausing(transaction, job);
      transaction.QueueChanged();  // the queue starts it on other nodes
      return;
    case JobState::kCancelling:
      transaction.Enter(job, JobState::kCancelled,
                        absl::StrCat("cancelled at step ", record.step.value(), " (", how, ")"));
      return;
    case JobState::kQueued:
    case JobState::kLaunching:
    case JobState::kRunning:
    case JobState::kPausedSoft:
    case JobState::kPausedHard:
    case JobState::kCompleted:
    case JobState::kFailed:
    case JobState::kCancelled:
      return;
  }
}

}  // namespace espalier
