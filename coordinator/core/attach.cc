// Hello: who may join, and who is fenced.
#include "absl/strings/str_cat.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/holders.h"
#include "coordinator/core/liveness.h"

namespace espalier {
namespace {

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
  if (!IsExternal(record) && state.node != hello.node) {
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
void DropOldStream(Context& context, TrackedRank& rank, StreamId fresh) {
  if (!rank.stream || *rank.stream == fresh) return;
  context.state().streams.erase(*rank.stream);
  context.Do(CloseStream{*rank.stream, absl::AbortedError("the worker has attached again")});
}

void TakeIn(Context& context, Job& job, const WorkerAttached& hello) {
  const WorkerId worker{job.record.id, job.record.generation, hello.worker.rank};
  TrackedRank& rank = job.world.ranks[static_cast<size_t>(worker.rank.value())];
  DropOldStream(context, rank, hello.stream);
  rank.stream = hello.stream;
  // To come is progress, to come again is not: a stream may flap while the rank hangs.
  if (rank.pid == 0) rank.progressed_at = context.now();
  rank.pid = hello.pid;
  rank.heard_at = context.now();
  rank.lease_until = LeaseEnd(job.record, context.now());
  rank.detached_at.reset();
  if (rank.node != hello.node) {
    rank.node = hello.node;
    job.record.nodes[static_cast<size_t>(worker.rank.value())] = hello.node;
    context.Persist(job);
  }
  job.world.unheard_since_restart = false;
  context.state().streams[hello.stream] = worker;
  const Step least = NewestHeld(job.record);
  context.Do(
      Welcome{.stream = hello.stream,
              .worker = worker,
              .node = hello.node,
              .pid = hello.pid,
              .directive = job.record.directive,
              .least = least,
              .least_held_by = least > Step(0) ? NodeList(HoldersOfNewest(job.record)) : ""});
}

}  // namespace

void Fence(Context& context, StreamId stream, const std::string& why) {
  context.state().streams.erase(stream);
  context.Do(CloseStream{stream, absl::FailedPreconditionError(why)});
}

void OnAttached(Context& context, const WorkerAttached& hello) {
  Job* job = nullptr;
  if (hello.external_id.empty() || !hello.worker.job.empty()) {
    job = context.FindJob(hello.worker.job);
    if (const std::string why = WhyStale(job, hello); !why.empty()) {
      Fence(context, hello.stream, why);
      return;
    }
  } else {
    job = JobOfHandStarted(context, hello);
    if (job == nullptr) return;
  }
  if (const std::string why = WhyRefused(*job, hello); !why.empty()) {
    Fence(context, hello.stream, why);
    return;
  }
  TakeIn(context, *job, hello);
}

}  // namespace espalier
