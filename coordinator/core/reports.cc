// What attached workers say.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/directives.h"
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

std::optional<Sender> FindSender(Transaction& transaction, StreamId stream) {
  const auto found = transaction.state().streams.find(stream);
  if (found == transaction.state().streams.end()) return std::nullopt;
  Job* job = transaction.FindJob(found->second.job);
  ESPALIER_CHECK(job != nullptr && job->record.generation == found->second.generation,
                 "only streams of the newest generation are kept");
  return Sender{job, found->second.rank};
}

// The rank that sent it, with its silence ended; none when the stream is unknown.
std::optional<Sender> Hear(Transaction& transaction, StreamId stream) {
  const auto sender = FindSender(transaction, stream);
  if (!sender) {
    transaction.Do(CloseStream{stream, absl::UnavailableError("say hello first")});
    return std::nullopt;
  }
  sender->state().heard_at = transaction.now();
  return sender;
}

// Another step is the next one.
void ForgetPractised(World& world) {
  world.kept.reset();
  for (TrackedRank& rank : world.ranks) rank.keeps_most.reset();
}

void Commit(Transaction& transaction, const Sender& sender, Step committed) {
  TrackedRank& rank = sender.state();
  rank.counters.step = std::max(rank.counters.step, committed);
  JobRecord& record = sender.job->record;
  // Until all ranks have agreed where to start from, the job's own count may be the larger one.
  if (record.state != JobState::kLaunching && record.step < rank.counters.step) {
    record.step = rank.counters.step;
    record.kept = 0;
    ForgetPractised(sender.job->world);
  }
  const bool late = record.state == JobState::kRecovering && NoteLateAdvance(record);
  if (late) transaction.Persist(*sender.job);
}

// Whoever reports a step or obeys at a boundary has joined, even if the message that said so was
// lost with its stream.
void NoteReady(Transaction& transaction, const Sender& sender, Step next_step) {
  TrackedRank& rank = sender.state();
  if (!rank.ready) rank.ready = next_step;
  if (rank.counters.phase == Phase::kStarting) rank.counters.phase = Phase::kBoundary;
  Commit(transaction, sender, next_step);
  const auto& ranks = sender.job->world.ranks;
  if (sender.job->record.state == JobState::kLaunching &&
      std::all_of(ranks.begin(), ranks.end(),
                  [](const TrackedRank& other) { return other.ready.has_value(); })) {
    OnEveryRankReady(transaction, *sender.job);
  }
}

// Only while the generation is wanted. Every heartbeat is answered: of those that waited behind a
// slow write, the first are old.
void RenewLeaseOf(Transaction& transaction, const Sender& sender, int64_t beat) {
  const JobRecord& record = sender.job->record;
  TrackedRank& rank = sender.state();
  const bool wanted = record.processes == Processes::kRunning && !sender.job->world.exited_at;
  if (beat == 0 || !wanted) return;
  rank.lease_until = LeaseEnd(record, transaction.now());
  transaction.Do(RenewLease{*rank.stream, beat});
}

// A worker tells every new stream its newest report again. The seconds it measured tell another
// attempt at the same step apart.
bool SameReport(const CheckpointRecord& a, const CheckpointRecord& b) {
  return std::tie(a.step, a.path, a.bytes, a.seconds, a.error) ==
         std::tie(b.step, b.path, b.bytes, b.seconds, b.error);
}

// Each rank whose node holds it tells of it; what is shown is the lowest rank's.
void NoteWritten(Transaction& transaction, const Sender& sender, const CheckpointRecord& fresh) {
  JobRecord& record = sender.job->record;
  std::optional<CheckpointRecord>& last = record.checkpoint;
  const bool held = NoteHolder(record, sender.state().node, fresh.step);
  const bool newest =
      !last || last->step < fresh.step || (last->step == fresh.step && sender.rank == Rank(0));
  const bool news = newest && !(last && SameReport(*last, fresh));
  if (news) {
    last = fresh;
    last->at = transaction.now();
    record.checkpoint_wanted = false;
    sender.job->world.unsaved_since.reset();
  }
  if (held || news) transaction.Persist(*sender.job);
}

// A rank was lost to this one. When one failed by itself, that is the cause. Ranks know each other
// by number; people know machines.
void OnLost(Transaction& transaction, const Sender& sender, const std::string& reason,
            const std::vector<Rank>& silent) {
  if (sender.job->world.failed_at) return;
  std::string said = absl::StrCat(RankOnNode(*sender.job, sender.rank), " gave up: ", reason);
  for (const Rank rank : silent) {
    if (rank.value() < 0 || rank.value() >= std::ssize(sender.job->world.ranks)) continue;
    absl::StrAppend(&said, "; not heard by it: ", WhereItWas(*sender.job, rank));
  }
  const auto culprit = FindCulprit(*sender.job, transaction.now());
  OnFault(transaction, *sender.job, {.reason = said, .culprit = culprit});
}

// Whose failure it is shows when the other ranks have spoken, too, or could have.
void OnFailed(Transaction& transaction, const Sender& sender, const WorkerFinished& report) {
  Job& job = *sender.job;
  NoteFailure(job, sender.rank, report);
  if (job.record.state == JobState::kCancelling) {
    transaction.Note(job, absl::StrCat(RankOnNode(job, sender.rank), ": ", report.reason));
    EndGeneration(transaction, job);
    return;
  }
  if (!job.world.failed_at) job.world.failed_at = transaction.now();
  const bool known = FailedEverywhere(job) || job.record.processes == Processes::kEnding;
  if (known) SettleFailure(transaction, job);
}

void OnOutcome(Transaction& transaction, const Sender& sender, const WorkerFinished& report) {
  Job& job = *sender.job;
  switch (report.outcome) {
    case Outcome::kCompleted:
      if (sender.rank == Rank(0)) {
        Decide(transaction, job, Verdict::kComplete,
               report.reason.empty()
                   ? absl::StrCat("all ", report.next_step.value(), " steps are committed")
                   : absl::StrCat("ended early after ", report.next_step.value(), " of ",
                                  job.record.spec.train().steps(), " steps: ", report.reason));
      }
      return;
    case Outcome::kStopped:
      if (job.record.directive.run_state == RunState::kRun && job.record.called_off) {
        TakeUpChange(transaction, job);
      } else if (job.record.directive.run_state != RunState::kStop) {
        OnLost(transaction, sender, "stopped without being asked to", {});
      }
      return;
    case Outcome::kFailed:
      OnFailed(transaction, sender, report);
      return;
    case Outcome::kLost:
      NoteSilentPeers(transaction, job, report);
      OnLost(transaction, sender, report.reason, report.silent_ranks);
      return;
  }
}

}  // namespace

void OnReport(Transaction& transaction, const WorkerFoundState& report) {
  const auto sender = Hear(transaction, report.stream);
  if (!sender) return;
  const TrackedRank& rank = sender->state();
  // Told again after the rank has gone on from there, and perhaps written newer ones.
  if (rank.ready) return;
  JobRecord& record = sender->job->record;
  const Node* const node = transaction.state().nodes.Find(rank.node);
  const std::optional<Step> seen = node != nullptr ? NewestSeen(*node, record.id) : std::nullopt;
  if (const std::optional<Step> before = NoteFound(record, rank.node, report.step, seen)) {
    transaction.Note(
        *sender->job,
        absl::StrCat(rank.node.text(), " holds ",
                     report.step == Step(0) ? "no checkpoint any more"
                                            : absl::StrCat("step ", report.step.value()),
                     "; what it had up to step ", before->value(), " is damaged or was removed"));
  }
  transaction.Persist(*sender->job);
}

void OnReport(Transaction& transaction, const WorkerReady& report) {
  const auto sender = Hear(transaction, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  rank.device = report.device;
  rank.data_sha256 = report.data_sha256;
  if (!rank.ready) rank.progressed_at = transaction.now();
  NoteReady(transaction, *sender, report.next_step);
}

void OnReport(Transaction& transaction, const WorkerHeartbeat& report) {
  const auto sender = Hear(transaction, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  if (report.counters != rank.counters) rank.progressed_at = transaction.now();
  const Step known = rank.counters.step;
  rank.counters = report.counters;
  rank.counters.step = std::max(known, report.counters.step);
  rank.memory_bytes = report.memory_bytes;
  rank.memory_peak_bytes = std::max(rank.memory_peak_bytes, report.memory_peak_bytes);
  RenewLeaseOf(transaction, *sender, report.beat);
  Commit(transaction, *sender, rank.counters.step);
}

// Each step counts once, whichever rank reports it first.
void NoteFigures(Transaction& transaction, Job& job, const StepFigures& figures) {
  JobRecord& record = job.record;
  if (record.last_step && figures.step <= record.last_step->step) return;
  record.last_step = figures;
  if (figures.skipped) ++record.skipped_steps;
  job.figures.Add(figures);
  const std::vector<std::string> news = job.health.Add(record.spec.health(), figures);
  if (!news.empty()) record.warnings = job.health.warnings();
  for (const std::string& one : news) transaction.Note(job, one);
}

// What starts from here on knows where the job trained last.
void NoteTraining(Transaction& transaction, Job& job) {
  if (job.record.trained_on == job.record.nodes) return;
  job.record.trained_on = job.record.nodes;
  transaction.Persist(job);
}

void OnReport(Transaction& transaction, const WorkerStepReported& report) {
  const auto sender = Hear(transaction, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  const Step committed = report.figures.step.next();
  if (committed > rank.counters.step) rank.progressed_at = transaction.now();
  if (!rank.last_step || report.figures.step > rank.last_step->step) {
    // The first step of a generation also finds the size of a micro-batch, and fills caches.
    if (rank.last_step) NoteSpeed(*sender->job, rank.node, report.figures);
    rank.last_step = report.figures;
  }
  NoteFigures(transaction, *sender->job, report.figures);
  NoteTraining(transaction, *sender->job);
  NoteReady(transaction, *sender, committed);
  if (const auto interrupted = sender->job->interruption.Committed(transaction.now())) {
    transaction.Note(*sender->job, *interrupted);
  }
  ReconsiderPlan(transaction, *sender->job);
}

// More than there ever was.
void NoteMostKept(Transaction& transaction, Job& job, int64_t kept) {
  JobRecord& record = job.record;
  record.kept = kept;
  NoteTraining(transaction, job);
  if (record.state == JobState::kRecovering && NoteLateAdvance(record)) transaction.Persist(job);
}

// Whatever is made meanwhile is in memory alone, and the first step waits.
void NoteFullFolder(Transaction& transaction, const Sender& sender, const std::string& error) {
  TrackedRank& rank = sender.state();
  if (error.empty() == !rank.keeps_nothing) return;
  rank.keeps_nothing = !error.empty();
  transaction.Note(*sender.job,
                   absl::StrCat(RankOnNode(*sender.job, sender.rank),
                                error.empty() ? " keeps again what is made before a step"
                                              : " cannot keep what is made before a step, which is "
                                                "tried again: ",
                                error));
}

// Journaled with the next fault; what is lost with a crash before that, the next report says again.
// What a generation says first may be what it has found, and is no progress unless there never was
// as much.
void OnReport(Transaction& transaction, const WorkerPractised& report) {
  const auto sender = Hear(transaction, report.stream);
  if (!sender) return;
  NoteReady(transaction, *sender, report.step);
  Job& job = *sender->job;
  if (&sender->state() == &job.world.ranks.front()) job.figures.AddPractice(report.seconds);
  NoteFullFolder(transaction, *sender, report.error);
  if (report.step != job.record.step) return;
  std::optional<int64_t>& known = job.world.kept;
  const bool most = report.kept > job.record.kept;
  const bool more = most || (known && report.kept > *known);
  known = std::max(known.value_or(0), report.kept);
  if (most) NoteMostKept(transaction, job, report.kept);
  sender->state().keeps_most = IsAboutTheMost(job.record, report.kept);
  if (NotePractisedOn(job.record, job.world, most)) transaction.Persist(job);
  if (!more) return;
  sender->state().progressed_at = transaction.now();
  job.world.practised = true;
  if (const auto interrupted = job.interruption.Committed(transaction.now())) {
    transaction.Note(job, *interrupted);
  }
}

void OnReport(Transaction& transaction, const WorkerEvaluated& report) {
  const auto sender = Hear(transaction, report.stream);
  if (!sender) return;
  JobRecord& record = sender->job->record;
  if (record.evaluation && record.evaluation->step > report.evaluation.step) return;
  const EvaluationRecord& fresh = report.evaluation;
  // One that lowered it may have gone unheard.
  if (fresh.rate_factor < std::exchange(record.rate_factor, fresh.rate_factor)) {
    transaction.Note(
        *sender->job,
        absl::StrFormat("the learning rate is %g of its schedule's from step %d on%s: the "
                        "validation loss is on a plateau (train.schedule.plateau_patience)",
                        fresh.rate_factor, fresh.step.value(),
                        report.lowers_rate ? "" : " or an earlier one"));
  }
  record.evaluation = fresh;
  transaction.Persist(*sender->job);
}

void OnReport(Transaction& transaction, const WorkerCheckpointed& report) {
  const auto sender = Hear(transaction, report.stream);
  if (!sender) return;
  Job& job = *sender->job;
  JobRecord& record = job.record;
  const CheckpointRecord& fresh = report.checkpoint;
  Commit(transaction, *sender, fresh.step);
  if (fresh.error.empty()) {
    NoteWritten(transaction, *sender, fresh);
  } else if (!record.checkpoint_failure || !SameReport(*record.checkpoint_failure, fresh)) {
    ++record.checkpoint_failures;
    transaction.Note(job, absl::StrCat("the checkpoint of step ", fresh.step.value(),
                                       " could not be written on ", sender->state().node.text(),
                                       ": ", fresh.error));
    record.checkpoint_failure = fresh;
    record.checkpoint_failure->at = transaction.now();
    record.checkpoint_wanted = false;
    std::optional<absl::Time>& unsaved = job.world.unsaved_since;
    if (record.state == JobState::kRegrouping && !unsaved) unsaved = transaction.now();
    transaction.Persist(job);
  }
}

void OnReport(Transaction& transaction, const DirectiveAcked& report) {
  const auto sender = Hear(transaction, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  if (report.number > rank.acked) rank.progressed_at = transaction.now();
  rank.acked = std::max(rank.acked, report.number);
  NoteReady(transaction, *sender, report.next_step);
  CheckPaused(transaction, *sender->job);
}

void OnReport(Transaction& transaction, const WorkerFinished& report) {
  const auto sender = Hear(transaction, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  if (rank.outcome) return;
  rank.outcome = report.outcome;
  Commit(transaction, *sender, report.next_step);
  OnOutcome(transaction, *sender, report);
  World& world = sender->job->world;
  const bool all = std::all_of(world.ranks.begin(), world.ranks.end(),
                               [](const TrackedRank& other) { return other.outcome.has_value(); });
  if (all && !world.ranks.empty() && !world.finished_at) world.finished_at = transaction.now();
  if (all && world.failed_at) SettleFailure(transaction, *sender->job);
  CheckGone(transaction, *sender->job);
}

void OnReport(Transaction& transaction, const WorkerDetached& report) {
  const auto sender = FindSender(transaction, report.stream);
  if (!sender) return;
  TrackedRank& rank = sender->state();
  rank.stream.reset();
  rank.detached_at = transaction.now();
  rank.detached_order = ++sender->job->world.detachments;
  transaction.state().streams.erase(report.stream);
  CheckGone(transaction, *sender->job);
}

}  // namespace espalier
