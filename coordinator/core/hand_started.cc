// Jobs whose mpirun a person starts: the workers of one mpirun share an external id; the first of
// them to say hello makes the job or takes up a waiting one of the same spec.
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/generation.h"
#include "coordinator/core/usable.h"
#include "coordinator/planner/shard_plan.h"

namespace espalier {
namespace {

// As many as a directive's plan has room for.
constexpr int32_t kRanksMax = 64;
// So many jobs that an mpirun made may wait for another one: they wait for ever, and each mpirun of
// a spec of its own leaves one.
constexpr int64_t kWaitingMax = 100;

v1::JobSpec ExternalSpec(const WorkerAttached& hello) {
  v1::JobSpec spec = *hello.external_spec;
  spec.mutable_launch()->set_mode(v1::LAUNCH_MODE_EXTERNAL);
  return spec;
}

bool SameSpec(const v1::JobSpec& a, const v1::JobSpec& b) {
  return a.SerializeAsString() == b.SerializeAsString();
}

// What has to be equal on all ranks of one mpirun: all but the nodes' own paths and settings. Ranks
// compare the names of programs that judge by themselves.
v1::JobSpec SharedPart(v1::JobSpec spec) {
  spec.mutable_data()->clear_path();
  spec.mutable_model()->clear_from();
  spec.mutable_checkpoint()->clear_directory();
  if (spec.train().has_lora()) spec.mutable_train()->mutable_lora()->clear_from();
  if (spec.train().has_verifier()) {
    v1::VerifierSpec& verifier = *spec.mutable_train()->mutable_verifier();
    verifier.clear_command();
    verifier.clear_folder();
    verifier.clear_words();
    verifier.clear_secrets();
  }
  spec.clear_launch();
  return spec;
}

// The first field in which the job of this worker is another than that of the ranks before it, as
// "modified: train.steps: 3 -> 4"; empty when it is the same.
std::string FirstDifference(const v1::JobSpec& job, const v1::JobSpec& spec) {
  std::string differences;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&differences);
  if (differencer.Compare(SharedPart(job), SharedPart(spec))) return "";
  return differences.substr(0, differences.find('\n'));
}

// Process numbers come again, and with them the ids of mpiruns: the one of a job that has ended is
// known only for as long as its last ranks may still be starting. Those that were welcomed name
// their job when they come again.
Job* FindByExternalId(ClusterState& state, const std::string& external_id) {
  for (auto& [id, job] : state.jobs) {
    const JobRecord& record = job.record;
    const absl::Duration start = absl::Seconds(record.spec.launch().timeout_seconds());
    if (record.external_id != external_id) continue;
    if (!IsFinal(record.state) || state.now - job.entered_at <= start) return &job;
  }
  return nullptr;
}

// Every worker of its last mpirun has gone, though perhaps not for long enough to call it lost.
bool Deserted(const Job& job) {
  const auto& ranks = job.world.ranks;
  return job.record.processes == Processes::kRunning && !job.world.unheard_since_restart &&
         std::all_of(ranks.begin(), ranks.end(),
                     [](const TrackedRank& rank) { return rank.detached_at && !rank.stream; });
}

// A job that this mpirun may continue: waiting, paused, deserted, or soon one of these. First those
// that wait for it, which no paused twin keeps from going on; of these the oldest.
Job* FindContinued(ClusterState& state, const v1::JobSpec& spec) {
  Job* found = nullptr;
  for (auto& [id, job] : state.jobs) {
    const JobState at = job.record.state;
    const bool open = at == JobState::kQueued || at == JobState::kPausedHard || Deserted(job) ||
                      job.record.processes == Processes::kEnding;
    if (!open || !IsExternal(job.record) || !SameSpec(job.record.spec, spec)) continue;
    const auto rank = [](const Job& one) {
      return std::make_pair(one.record.state == JobState::kPausedHard, one.record.number);
    };
    if (found == nullptr || rank(job) < rank(*found)) found = &job;
  }
  return found;
}

// The person who typed -np decides how many, so max_nodes does not count; min_nodes does, since a
// world smaller than asked is an error.
absl::Status CheckWorld(const v1::JobSpec& spec, int32_t world_size) {
  const int32_t least = spec.parallel().min_nodes();
  if (world_size < least || world_size > kRanksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("mpirun started ", world_size, world_size == 1 ? " rank" : " ranks",
                     ", but the job asks for at least ", least, " (parallel.min_nodes), and ",
                     kRanksMax, " are the most; give mpirun -np another number"));
  }
  return CheckShares(spec, world_size);
}

std::string WhyNotNow(const Job& job) {
  const JobRecord& record = job.record;
  if (record.state != JobState::kPausedHard) return "";
  return absl::StrCat("job ", record.id.text(), " is paused (", record.reason,
                      "); run `espalier resume ", record.id.text(), "` first");
}

// Empty when the worker may join the job that its mpirun has; else why it may not.
std::string WhyNotOfThisMpirun(const Job& job, const WorkerAttached& hello,
                               const v1::JobSpec& spec) {
  const JobRecord& record = job.record;
  if (record.processes != Processes::kRunning) {
    return absl::StrCat(
        "this mpirun's generation of job ", record.id.text(), " has ended; the job is ",
        JobStateName(record.state), " (", record.reason,
        "); start mpirun again, and where that is taken for the same one (Open MPI 5 "
        "in a container), add -x ESPALIER_RUN_ID=NAME with a new name to it");
  }
  if (const std::string difference = FirstDifference(record.spec, spec); !difference.empty()) {
    return absl::StrCat("rank ", hello.worker.rank.value(), " on ", hello.node.text(),
                        " was given another job file than the ranks before it (", difference,
                        "); give every rank of an mpirun the same file and the same --set");
  }
  return "";
}

// Empty when there is room for one more job.
std::string WhyNoMore(const ClusterState& state) {
  const auto waiting = std::count_if(state.jobs.begin(), state.jobs.end(), [](const auto& job) {
    const JobRecord& record = job.second.record;
    return IsExternal(record) && record.request_id.empty() && record.state == JobState::kQueued;
  });
  if (waiting < kWaitingMax) return "";
  return absl::StrCat(waiting, " hand-started jobs wait for an mpirun, and ", kWaitingMax,
                      " are the most; cancel those that nobody will go on with (`espalier jobs`, "
                      "`espalier cancel JOB`)");
}

// Its last mpirun is not known to have ended.
std::string AttachAgain(const Job& job) {
  return absl::StrCat("job ", job.record.id.text(), " is ", JobStateName(job.record.state), " (",
                      job.record.reason, "); its next mpirun is taken then");
}

// A new mpirun: of a waiting job, or of a new one. `job` is the waiting one, if any.
Job* Begin(Transaction& transaction, const WorkerAttached& hello, const v1::JobSpec& spec,
           Job* job) {
  if (job != nullptr) {
    if (const std::string why = WhyNotNow(*job); !why.empty()) {
      Fence(transaction, hello.stream, why);
      return nullptr;
    }
    if (job->record.processes == Processes::kRunning) {
      OnFault(transaction, *job, {.reason = "its mpirun was replaced by a newer one"});
    }
    if (job->record.processes == Processes::kEnding) {
      transaction.Do(CloseStream{hello.stream, absl::AbortedError(AttachAgain(*job))});
      return nullptr;
    }
    if (job->record.state != JobState::kQueued) {
      Fence(transaction, hello.stream,
            absl::StrCat("job ", job->record.id.text(), " is ", JobStateName(job->record.state)));
      return nullptr;
    }
  } else if (const std::string why = WhyNoMore(transaction.state()); !why.empty()) {
    Fence(transaction, hello.stream, why);
    return nullptr;
  } else {
    job = &AddJob(transaction, {.spec = spec});
  }
  job->record.external_id = hello.external_id;
  StartGeneration(
      transaction, *job, std::vector<NodeName>(static_cast<size_t>(hello.world_size)),
      absl::StrCat("a hand-started mpirun of ", hello.world_size, " ranks attaches as generation ",
                   job->record.generation.next().value()));
  return job;
}

// The job that holds the node, unless it is this one; null: none.
const JobId* HeldByOther(const ClusterState& state, const NodeName& node, const Job* own) {
  const JobId* holder = state.nodes.HolderOf(node);
  const bool other = holder != nullptr && (own == nullptr || *holder != own->record.id);
  return other ? holder : nullptr;
}

}  // namespace

Job* JobOfHandStarted(Transaction& transaction, const WorkerAttached& hello) {
  if (!hello.external_spec) {
    Fence(transaction, hello.stream,
          "a hand-started worker must say which job it runs (--job FILE)");
    return nullptr;
  }
  const v1::JobSpec spec = ExternalSpec(hello);
  Job* known = FindByExternalId(transaction.state(), hello.external_id);
  Job* job = known != nullptr ? known : FindContinued(transaction.state(), spec);
  if (const JobId* other = HeldByOther(transaction.state(), hello.node, job)) {
    Fence(transaction, hello.stream,
          absl::StrCat("node ", hello.node.text(), " is held by job ", other->text(),
                       "; pause or cancel that first, or use another node"));
    return nullptr;
  }
  const Node* node = transaction.state().nodes.Find(hello.node);
  if (node != nullptr && node->record.drained) {
    Fence(transaction, hello.stream,
          absl::StrCat("node ", hello.node.text(), " ",
                       Describe(transaction.state(), *node, {Obstacle::kDrained, {}}),
                       "; or start mpirun without it"));
    return nullptr;
  }
  if (known != nullptr) {
    const std::string why = WhyNotOfThisMpirun(*known, hello, spec);
    if (why.empty()) return known;
    Fence(transaction, hello.stream, why);
    return nullptr;
  }
  absl::Status status = CheckAgainstCluster(transaction.state(), spec);
  if (status.ok()) status = CheckWorld(spec, hello.world_size);
  if (!status.ok()) {
    Fence(transaction, hello.stream, std::string(status.message()));
    return nullptr;
  }
  return Begin(transaction, hello, spec, job);
}

}  // namespace espalier
