#include "coordinator/core/directives.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/shares.h"

namespace espalier {
namespace {

void SendToAll(Transaction& transaction, Job& job) {
  transaction.Persist(job);
  for (const TrackedRank& rank : job.world.ranks) {
    if (rank.stream) transaction.Do(SendDirective{*rank.stream, job.record.directive});
  }
}

}  // namespace

void FirstDirective(Job& job, int32_t ranks) {
  JobRecord& record = job.record;
  record.run_state_number = 1;
  record.directive = Directive{
      .number = 1,
      .run_state = record.desired == DesiredState::kPauseSoft ? RunState::kPause : RunState::kRun,
      .checkpoint_request = record.checkpoint_wanted ? 1 : 0,
      .plan = MakePlan({.number = ++record.last_plan, .ranks = ranks, .spec = record.spec})};
}

void ChangeDirective(Transaction& transaction, Job& job, const DirectiveChange& change) {
  Directive& directive = job.record.directive;
  if (directive.run_state == change.run_state &&
      directive.checkpoint_before_stop == change.checkpoint_before_stop) {
    return;
  }
  ++directive.number;
  if (directive.run_state != change.run_state) job.record.run_state_number = directive.number;
  directive.run_state = change.run_state;
  directive.checkpoint_before_stop = change.checkpoint_before_stop;
  SendToAll(transaction, job);
}

void AskForCheckpoint(Transaction& transaction, Job& job) {
  job.record.checkpoint_wanted = true;
  ++job.record.directive.checkpoint_request;
  ++job.record.directive.number;
  SendToAll(transaction, job);
}

bool StopObeyed(const Job& job) {
  return job.record.directive.run_state == RunState::kStop && !job.world.ranks.empty() &&
         job.world.ranks.front().outcome == Outcome::kStopped;
}

bool EveryRankObeyed(const Job& job) {
  const auto& ranks = job.world.ranks;
  return std::all_of(ranks.begin(), ranks.end(), [&](const TrackedRank& rank) {
    return rank.acked >= job.record.run_state_number;
  });
}

namespace {

std::string Explain(const std::vector<int64_t>& shares, const v1::JobSpec& spec) {
  const int32_t batch = spec.train().global_batch();
  if (spec.parallel().shares().empty()) {
    return absl::StrCat("even: ", batch, " sequences over ", shares.size(),
                        shares.size() == 1 ? " rank" : " ranks");
  }
  return absl::StrCat("parallel.shares ", absl::StrJoin(shares, ":"), " of ", batch, " sequences");
}

}  // namespace

ShardPlan MakePlan(const PlanRequest& request) {
  const auto& given = request.spec.parallel().shares();
  ESPALIER_CHECK(CheckShares(request.spec, request.ranks).ok(), "shares were checked before");
  std::vector<int64_t> shares(given.begin(), given.end());
  if (shares.empty()) shares.assign(static_cast<size_t>(request.ranks), 1);
  ShardPlan plan{.number = request.number, .reason = Explain(shares, request.spec)};
  for (const int64_t part : DivideByShares(request.spec.train().global_batch(), shares)) {
    plan.sequences.push_back(static_cast<int32_t>(part));
  }
  return plan;
}

absl::Status CheckShares(const v1::JobSpec& spec, int32_t ranks) {
  const auto& shares = spec.parallel().shares();
  if (shares.empty()) return absl::OkStatus();
  const int64_t total = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  if (shares.size() == ranks && total > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("parallel.shares is [", absl::StrJoin(shares, ", "),
                   "], but needs one entry for each of ", ranks, " ranks and a sum above 0; ",
                   "give as many entries as min_nodes = max_nodes, or leave shares out"));
}

}  // namespace espalier
