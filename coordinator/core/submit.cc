// New jobs: from operators, and from mpiruns started by hand.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "coordinator/core/advance.h"
#include "coordinator/core/facts.h"
#include "coordinator/planner/shard_plan.h"

namespace espalier {
namespace {

int32_t MostRanks(const v1::ParallelSpec& parallel) {
  return parallel.has_max_nodes() ? parallel.max_nodes() : parallel.min_nodes();
}

absl::Status CheckCounts(const v1::ParallelSpec& parallel) {
  const int32_t least = parallel.min_nodes();
  const int32_t most = MostRanks(parallel);
  if (most < least) {
    return absl::InvalidArgumentError(absl::StrCat("parallel.max_nodes is ", most,
                                                   ", below parallel.min_nodes, which is ", least,
                                                   "; raise max_nodes or lower min_nodes"));
  }
  if (!parallel.shares().empty() && least != most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallel.shares fixes the number of ranks, but min_nodes is ", least, " and max_nodes is ",
        most, "; make both ", parallel.shares_size(), ", or leave shares out"));
  }
  return absl::OkStatus();
}

absl::Status CheckNodes(const ClusterState& state, const v1::ParallelSpec& parallel) {
  std::set<std::string> allowed;
  for (const std::string& name : parallel.nodes()) {
    if (state.nodes.Find(NodeName(name)) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parallel.nodes names '", name, "', which is no node of this cluster; there are: ",
          NamesOfNodes(state.nodes), "; 'espalier nodes add' or the cluster file makes it one"));
    }
    if (!allowed.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("parallel.nodes names '", name, "' twice; one rank runs on each node"));
    }
  }
  for (const auto* names : {&parallel.exclude_nodes(), &parallel.prefer_nodes()}) {
    for (const std::string& name : *names) {
      if (state.nodes.Find(NodeName(name)) != nullptr) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          names == &parallel.exclude_nodes() ? "parallel.exclude_nodes" : "parallel.prefer_nodes",
          " names '", name,
          "', and there is no such node; there are: ", NamesOfNodes(state.nodes)));
    }
  }
  const auto have = static_cast<size_t>(
      std::count_if(state.nodes.begin(), state.nodes.end(),
                    [&](const Node& node) { return MayUse(parallel, node.record.name); }));
  if (have >= static_cast<size_t>(parallel.min_nodes())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("parallel.min_nodes is ", parallel.min_nodes(), ", but only ", have,
                   " nodes may run the job (the cluster has: ", NamesOfNodes(state.nodes),
                   "); lower min_nodes or add nodes to the cluster file"));
}

const Job* FindByRequest(const ClusterState& state, const std::string& request_id) {
  if (request_id.empty()) return nullptr;
  for (const auto& [id, job] : state.jobs) {
    if (job.record.request_id == request_id) return &job;
  }
  return nullptr;
}

}  // namespace

absl::Status CheckAgainstCluster(const ClusterState& state, const v1::JobSpec& spec) {
  if (spec.train().global_batch() < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.global_batch is ", spec.train().global_batch(), "; it must be at least 1 sequence"));
  }
  RETURN_IF_ERROR(CheckCounts(spec.parallel()));
  RETURN_IF_ERROR(CheckShares(spec, MostRanks(spec.parallel())));
  if (spec.launch().mode() == v1::LAUNCH_MODE_EXTERNAL) return absl::OkStatus();
  return CheckNodes(state, spec.parallel());
}

Job& AddJob(Transaction& transaction, NewJob added) {
  ClusterState& state = transaction.state();
  JobRecord record;
  record.number = state.next_job++;
  record.id = JobId(absl::StrCat(added.spec.name(), "-", record.number));
  record.request_id = std::move(added.request_id);
  record.spec = std::move(added.spec);
  record.yaml = std::move(added.yaml);
  record.submitted_at = transaction.moment().wall;
  Job& job = state.jobs[record.id];
  job.record = std::move(record);
  transaction.Enter(job, JobState::kQueued,
                    IsExternal(job.record)
                        ? "submitted; start its mpirun by hand (espalier-worker --job FILE)"
                        : "submitted; waits for nodes");
  return job;
}

void OnSubmit(Transaction& transaction, const SubmitRequested& request) {
  Reply reply{.request = request.request};
  if (const Job* made = FindByRequest(transaction.state(), request.request_id)) {
    reply.job = made->record.id;
  } else if (absl::Status status = CheckAgainstCluster(transaction.state(), request.spec);
             !status.ok()) {
    reply.status = status;
  } else {
    reply.job =
        AddJob(transaction,
               {.request_id = request.request_id, .spec = request.spec, .yaml = request.yaml})
            .record.id;
  }
  transaction.Do(std::move(reply));
}

namespace {

constexpr absl::Duration kBetweenLooks = absl::Hours(1);

}  // namespace

void ForgetOldJobs(Transaction& transaction, const RetentionPolicy& policy) {
  ClusterState& state = transaction.state();
  if (transaction.now() < state.next_retention) return;
  state.next_retention = transaction.now() + kBetweenLooks;
  std::vector<std::pair<absl::Time, JobId>> ended;
  for (const auto& [id, job] : state.jobs) {
    const auto& ranks = job.world.ranks;
    const bool heard = std::any_of(ranks.begin(), ranks.end(),
                                   [](const TrackedRank& rank) { return rank.stream.has_value(); });
    if (IsFinal(job.record.state) && !heard) ended.emplace_back(job.record.state_since, id);
  }
  std::sort(ended.rbegin(), ended.rend());  // newest first
  for (size_t i = policy.always; i < ended.size(); ++i) {
    const auto& [since, id] = ended[i];
    if (i < policy.most && transaction.moment().wall - since <= policy.age) continue;
    state.jobs.erase(id);
    transaction.Do(ForgetJob{id});
  }
}

}  // namespace espalier
