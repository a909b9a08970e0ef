// Hello: who may join, and who is fenced.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/holders.h"
#include "coordinator/core/liveness.h"

namespace espalier {
namespace {

// Of a hand-started mpirun that says hello for the first time: where its ranks are is not known
// yet.
bool IsNewcomer(const WorkerAttached& hello) {
  return !hello.external_id.empty() && hello.worker.job.empty();
}

// Empty when the worker may take this rank; else why it may not.
std::string WhyRefused(const Job& job, const WorkerAttached& hello) {
  const JobRecord& record = job.record;
  const int64_t rank = hello.worker.rank.value();
  const auto size = static_cast<int64_t>(job.world.ranks.size());
  if (hello.world_size != size || rank < 0 || rank >= size) {
    return absl::StrCat("generation ", record.generation.value(), " of job ", record.id.text(),
                        " has ", size, " ranks, but this worker is rank ", rank, " of ",
                        hello.world_size, "; mpirun did not start what was asked for");
  }
  const TrackedRank& state = job.world.ranks[static_cast<size_t>(rank)];
  if (!IsNewcomer(hello) && state.node != hello.node) {
    return absl::StrCat("rank ", rank, " of job ", record.id.text(), " belongs on node ",
                        state.node.text(), ", but this worker runs on '", hello.node.text(), "'");
  }
  if (state.pid != 0 && state.pid != hello.pid) {
    return absl::StrCat("rank ", rank, " of generation ", record.generation.value(), " of job ",
                        record.id.text(), " is process ", state.pid, ", not ", hello.pid,
                        "; a lost rank comes back in a new generation only");
  }
  return "";
}

// Empty when the named generation is the one that runs.
std::string WhyStale(const Job* job, const WorkerAttached& hello) {
  const int64_t generation = hello.worker.generation.value();
  if (job == nullptr) return absl::StrCat("there is no job '", hello.worker.job.text(), "'");
  const JobRecord& record = job->record;
  if (record.generation.value() == generation && record.processes == Processes::kRunning) return "";
  return absl::StrCat("generation ", generation, " of job ", record.id.text(),
                      " has ended; the newest is ", record.generation.value(), " and the job is ",
                      JobStateName(record.state), " (", record.reason, ")");
}

// The worker opened a new stream before its old one was seen to break.
void DropOldStream(Transaction& transaction, TrackedRank& rank, StreamId fresh) {
  if (!rank.stream || *rank.stream == fresh) return;
  transaction.state().streams.erase(*rank.stream);
  transaction.Do(CloseStream{*rank.stream, absl::AbortedError("the worker has attached again")});
}

// Where no agent ever comes, nobody would give the memory back; one that is away for the moment may
// have told of what is there.
bool KeepsWarm(const ClusterState& state, const JobRecord& record, const NodeName& name) {
  const Node* const node = state.nodes.Find(name);
  return record.spec.checkpoint().warm_state() && node != nullptr && node->record.has_agent;
}

void TakeIn(Transaction& transaction, Job& job, const WorkerAttached& hello) {
  const WorkerId worker{job.record.id, job.record.generation, hello.worker.rank};
  TrackedRank& rank = job.world.ranks[static_cast<size_t>(worker.rank.value())];
  DropOldStream(transaction, rank, hello.stream);
  rank.stream = hello.stream;
  // To come is progress, to come again is not: a stream may flap while the rank hangs.
  if (rank.pid == 0) rank.progressed_at = transaction.now();
  rank.pid = hello.pid;
  rank.version = hello.version;
  rank.heard_at = transaction.now();
  rank.lease_until = LeaseEnd(job.record, transaction.now());
  rank.detached_at.reset();
  if (rank.node != hello.node) {
    rank.node = hello.node;
    job.record.nodes[static_cast<size_t>(worker.rank.value())] = hello.node;
    transaction.Persist(job);
  }
  job.world.unheard_since_restart = false;
  const auto& ranks = job.world.ranks;
  const bool all = std::all_of(ranks.begin(), ranks.end(),
                               [](const TrackedRank& other) { return other.stream.has_value(); });
  if (job.record.state == JobState::kLaunching) {
    const auto which = all ? Interruption::Ranks::kAll : Interruption::Ranks::kFirst;
    job.interruption.Attached(which, transaction.now());
  }
  transaction.state().streams[hello.stream] = worker;
  const Holders holders(transaction.state(), job.record);
  const Step least = holders.LeastOn(job.record.nodes);
  transaction.Do(Welcome{.stream = hello.stream,
                         .worker = worker,
                         .node = hello.node,
                         .pid = hello.pid,
                         .directive = job.record.directive,
                         .least = least,
                         .least_held_by = least > Step(0) ? NodeList(holders.Names()) : "",
                         .has_got_on = HasGotOn(job.record),
                         .keep_warm = KeepsWarm(transaction.state(), job.record, hello.node)});
}

}  // namespace

void Fence(Transaction& transaction, StreamId stream, const std::string& why) {
  transaction.state().streams.erase(stream);
  transaction.Do(CloseStream{stream, absl::FailedPreconditionError(why)});
}

void OnAttached(Transaction& transaction, const WorkerAttached& hello) {
  Job* job = nullptr;
  if (IsNewcomer(hello)) {
    job = JobOfHandStarted(transaction, hello);
    if (job == nullptr) return;
  } else {
    job = transaction.FindJob(hello.worker.job);
    if (const std::string why = WhyStale(job, hello); !why.empty()) {
      Fence(transaction, hello.stream, why);
      return;
    }
  }
  if (const std::string why = WhyRefused(*job, hello); !why.empty()) {
    Fence(transaction, hello.stream, why);
    return;
  }
  TakeIn(transaction, *job, hello);
}

}  // namespace espalier
