// What attached workers say.
#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/faults.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/holders.h"
#include "coordinator/core/liveness.h"

namespace espalier {
namespace {

struct Sender {
  Job* job = nullptr;
  Rank rank;
  TrackedRank& state() const { return job->world.ranks[static_cast<size_t>(rank.value())]; }
};

std::optional<Sender> FindSender(Context& context, StreamId stream) {
  const auto found = context.state().streams.find(stream);
  if (found == context.state().streams.end()) return std::nullopt;
  Job* job = context.FindJob(found->second.job);
  ESPALIER_CHECK(job != nullptr && job->record.generation == found->second.generation,
                 "only streams of the newest generation are kept");
  return Sender{job, found->second.rank};
}

// The rank that sent it, with its silence ended; none when the stream is unknown.
std::optional<Sender> Hear(Context& context, StreamId stream) {
  const auto sender = FindSender(context, stream);
  if (!sender) {
    context.Do(CloseStream{stream, absl::UnavailableError("say hello first")});
    return std::nullopt;
  }
  sender->state().heard_at = context.now();
  return sender;
}

void Commit(const Sender& sender, Step committed) {
  TrackedRank& rank = sender.state();
  rank.counters.step = std::max(rank.counters.step, committed);
  JobRecord& record = sender.job->record;
  // Until all ranks have agreed where to start from, the job's own count may be the larger one.
  if (record.state != JobState::kLaunching) {
    record.step = std::max(record.step, rank.counters.step);
  }
  if (record.state == JobState::kRecovering) NoteLateAdvance(record);
}

// Whoever reports a step or obeys at a boundary has joined, even if the message that said so was
// lost with its stream.
void NoteReady(Context& context, const Sender& sender, Step next_step) {
  TrackedRank& rank = sender.state();
  if (!rank.ready) rank.ready = next_step;
  if (rank.counters.phase == Phase::kStarting) rank.counters.phase = Phase::kBoundary;
  Commit(sender, next_step);
  const auto& ranks = sender.job->world.ranks;
  if (sender.job->record.state == JobState::kLaunching &&
      std::all_of(ranks.begin(), ranks.end(),
                  [](const TrackedRank& other) { return other.ready.has_value(); })) {
    OnEveryRankReady(context, *sender.job);
  }
}

// Only while the generation is wanted. Every heartbeat is answered: of those that waited behind a
// slow write, the first are old.
void RenewLeaseOf(Context& context, const Sender& sender, int64_t beat) {
  const JobRecord& record = sender.job->record;
  TrackedRank& rank = sender.state();
  const bool wanted = record.processes == Processes::kRunning && !sender.job->world.exited_at;
  if (beat == 0 || !wanted) return;
  rank.lease_until = LeaseEnd(record, context.now());
  context.Do(RenewLease{*rank.stream, beat});
}

// A worker tells every new stream its newest report again. The seconds it measured tell another
// attempt at the same step apart.
bool SameReport(const CheckpointRecord& a, const CheckpointRecord& b) {
  return std::tie(a.step, a.path, a.bytes, a.seconds, a.error) ==
         std::tie(b.step, b.path, b.bytes, b.seconds, b.error);
}

// Each rank whose node holds it tells of it; what is shown is the lowest rank's.
void NoteWritten(Context& context, const Sender& sender, const CheckpointRecord& fresh) {
  JobRecord& record = sender.job->record;
  std::optional<CheckpointRecord>& last = record.checkpoint;
  const bool held = NoteHolder(record, sender.state().node, fresh.step);
  const bool newest =
      !last || last->step < fresh.step || (last->step == fresh.step && sender.rank == Rank(0));
  const bool news = newest && !(last && SameReport(*last, fresh));
  if (news) {
    last = fresh;
    last->at = context.now();
    record.checkpoint_wanted = false;
  }
  if (held || news) context.Persist(*sender.job);
}

// A rank was lost to this one. When one failed by itself, that is the cause.
void OnLost(Context& context, const Sender& sender, const std::string& reason) {
  if (sender.job->world.failed_at) return;
  const std::string said = absl::StrCat(RankOnNode(*sender.job, sender.rank), " gave up: ", reason);
  const auto culprit = FindCulprit(*sender.job, context.now());
  OnFault(context, *sender.job, {.reason = said, .culprit = culprit});
}

// Whose failure it is shows when the other ranks have spoken, too, or could have.
void OnFailed(Context& context, const Sender& sender, const WorkerFinished& report) {
  Job& job = *sender.job;
  NoteFailure(job, sender.rank, report);
  if (job.record.state == JobState::kCancelling) {
    context.Note(job, absl::StrCat(RankOnNode(job, sender.rank), ": ", report.reason));
    EndGeneration(context, job);
    return;
  }
  if (!job.world.failed_at) job.world.failed_at = context.now();
  const bool known = FailedEverywhere(job) || job.record.processes == Processes::kEnding;
  if (known) SettleFailure(context, job);
}

void OnOutcome(Context& context, const Sender& sender, const WorkerFinished& report) {
  Job& job = *sender.job;
  switch (report.outcome) {
    case Outcome::kCompleted:
      if (sender.rank == Rank(0)) {
        Decide(context, job, Verdict::kComplete,
               absl::StrCat("all ", report.next_step.value(), " steps are committed"));
      }
      return;
    case Outcome::kStopped:
      if (job.record.directive.run_state != RunState::kStop) {
        OnLost(context, sender, "stopped without being asked to");
      }
      return;
    case Outcome::kFailed:
      OnFailed(context, sender, report);
      return;
    case Outcome::kLost:
      OnLost(context, sender, report.reason);
      return;
  }
}

}  // namespace

void OnReport(Context& context, const WorkerFoundState& report) {
  const auto sender = Hear(context, report.stream);
  if (!sender) return;
  const TrackedRank& rank = sender->state();
  // Told again after the rank has gone on from there, and perhaps written newer ones.
  if (rank.ready) return;
  JobRecord& record = sender->job->record;
  if (const std::optional<Step> before = NoteFound(record, rank.node, report.step)) {
    context.Note(
        *sender->job,
        absl::StrCat(rank.node.text(), " holds ",
                     report.step == Step(0) ? "no checkpoint any more"
                                            : absl::StrCat("step ", report.step.value()),
                     "; what it had up to step ", before->value(), " is damaged or was removed"));
  }
  context.Persist(*sender->job);
}

void OnReport(Context& context, const WorkerReady& report) {
  const auto sender = Hear(context, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  rank.device = report.device;
  if (!rank.ready) rank.progressed_at = context.now();
  NoteReady(context, *sender, report.next_step);
}

void OnReport(Context& context, const WorkerHeartbeat& report) {
  const auto sender = Hear(context, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  if (report.counters != rank.counters) rank.progressed_at = context.now();
  const Step known = rank.counters.step;
  rank.counters = report.counters;
  rank.counters.step = std::max(known, report.counters.step);
  rank.memory_bytes = report.memory_bytes;
  rank.memory_peak_bytes = std::max(rank.memory_peak_bytes, report.memory_peak_bytes);
  RenewLeaseOf(context, *sender, report.beat);
  Commit(*sender, rank.counters.step);
}

void OnReport(Context& context, const WorkerStepReported& report) {
  const auto sender = Hear(context, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  const Step committed = report.figures.step.next();
  if (committed > rank.counters.step) rank.progressed_at = context.now();
  if (!rank.last_step || report.figures.step > rank.last_step->step) {
    rank.last_step = report.figures;
  }
  if (sender->job->figures.Add(report.figures) && report.figures.skipped) {
    ++sender->job->record.skipped_steps;
  }
  NoteReady(context, *sender, committed);
}

void OnReport(Context& context, const WorkerEvaluated& report) {
  const auto sender = Hear(context, report.stream);
  if (!sender) return;
  JobRecord& record = sender->job->record;
  if (record.evaluation && record.evaluation->step > report.evaluation.step) return;
  record.evaluation = report.evaluation;
  context.Persist(*sender->job);
}

void OnReport(Context& context, const WorkerCheckpointed& report) {
  const auto sender = Hear(context, report.stream);
  if (!sender) return;
  Job& job = *sender->job;
  JobRecord& record = job.record;
  const CheckpointRecord& fresh = report.checkpoint;
  Commit(*sender, fresh.step);
  if (fresh.error.empty()) {
    NoteWritten(context, *sender, fresh);
  } else if (!record.checkpoint_failure || !SameReport(*record.checkpoint_failure, fresh)) {
    ++record.checkpoint_failures;
    context.Note(job, absl::StrCat("the checkpoint of step ", fresh.step.value(),
                                   " could not be written on ", sender->state().node.text(), ": ",
                                   fresh.error));
    record.checkpoint_failure = fresh;
    record.checkpoint_failure->at = context.now();
    record.checkpoint_wanted = false;
    context.Persist(job);
  }
}

void OnReport(Context& context, const DirectiveAcked& report) {
  const auto sender = Hear(context, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  if (report.number > rank.acked) rank.progressed_at = context.now();
  rank.acked = std::max(rank.acked, report.number);
  NoteReady(context, *sender, report.next_step);
  CheckPaused(context, *sender->job);
}

void OnReport(Context& context, const WorkerFinished& report) {
  const auto sender = Hear(context, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  if (rank.outcome) return;
  rank.outcome = report.outcome;
  Commit(*sender, report.next_step);
  OnOutcome(context, *sender, report);
  World& world = sender->job->world;
  const bool all = std::all_of(world.ranks.begin(), world.ranks.end(),
                               [](const TrackedRank& other) { return other.outcome.has_value(); });
  if (all && !world.ranks.empty() && !world.finished_at) world.finished_at = context.now();
  if (all && world.failed_at) SettleFailure(context, *sender->job);
  CheckGone(context, *sender->job);
}

void OnReport(Context& context, const WorkerDetached& report) {
  const auto sender = FindSender(context, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  rank.stream.reset();
  rank.detached_at = context.now();
  rank.detached_order = ++sender->job->world.detachments;
  context.state().streams.erase(report.stream);
  CheckGone(context, *sender->job);
}

}  // namespace espalier
