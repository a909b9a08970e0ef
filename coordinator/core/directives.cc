#include "coordinator/core/directives.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/facts.h"
#include "coordinator/planner/planner.h"

namespace espalier {
namespace {

void SendToAll(Transaction& transaction, Job& job) {
  transaction.Persist(job);
  for (const TrackedRank& rank : job.world.ranks) {
    if (rank.stream) transaction.Do(SendDirective{*rank.stream, job.record.directive});
  }
}

std::vector<PlannedRank> PlannedRanks(const ClusterState& state, const JobRecord& record) {
  std::vector<PlannedRank> ranks;
  for (const NodeName& name : record.nodes) {
    const Node* node = state.nodes.Find(name);
    PlannedRank& rank = ranks.emplace_back();
    rank.node = name;
    rank.speed = SpeedOf(record, name);
    if (node == nullptr) continue;
    rank.relative_speed = node->spec.relative_speed();
    rank.largest_share = LargestShare(node->spec);
    rank.part = node->agent.share.Part(node->spec);
    rank.spared = node->agent.share.why();
  }
  return ranks;
}

ShardPlan NewPlan(Transaction& transaction, Job& job) {
  JobRecord& record = job.record;
  const auto ranks = static_cast<int32_t>(record.nodes.size());
  const int32_t batch = record.spec.train().global_batch();
  ShardPlan plan = PlansBySpeed(record.spec)
                       ? FirstPlan(batch, PlannedRanks(transaction.state(), record))
                       : FixedPlan({.ranks = ranks, .spec = record.spec});
  plan.number = ++record.last_plan;
  plan.decided_ms = absl::ToUnixMillis(transaction.now());
  return plan;
}

// Of a node that has not been heard of since espalierd's start `former` is what is known.
std::vector<RankLimit> LimitsOf(const ClusterState& state, const JobRecord& record,
                                const std::vector<RankLimit>& former) {
  if (!PlansBySpeed(record.spec) || !Samples(record.spec)) return {};
  std::vector<RankLimit> limits;
  for (const PlannedRank& rank : PlannedRanks(state, record)) {
    const Node* node = state.nodes.Find(rank.node);
    const bool silent = node != nullptr && !node->agent.report;
    const size_t place = limits.size();
    const double part = silent && place < former.size() ? former[place].part : rank.part;
    limits.push_back({.part = part, .largest_share = rank.largest_share});
  }
  const bool any = std::any_of(limits.begin(), limits.end(),
                               [](const RankLimit& limit) { return limit != RankLimit(); });
  return any ? limits : std::vector<RankLimit>();
}

// What nodes compute less than they could is no surprise.
void NoteLimits(Transaction& transaction, Job& job) {
  const JobRecord& record = job.record;
  if (!PlansBySpeed(record.spec)) return;
  const std::vector<PlannedRank> ranks = PlannedRanks(transaction.state(), record);
  const std::string limits = LimitsText(record.spec.train().global_batch(), ranks);
  if (limits.empty()) return;
  transaction.Note(job, absl::StrCat("plan: ", SharesText(record.directive.plan.sequences, ranks),
                                     "; because ", limits));
}

}  // namespace

void FirstDirective(Transaction& transaction, Job& job) {
  JobRecord& record = job.record;
  record.run_state_number = 1;
  record.called_off = false;
  record.directive = Directive{
      .number = 1,
      .run_state = record.desired == DesiredState::kPauseSoft ? RunState::kPause : RunState::kRun,
      .checkpoint_request = record.checkpoint_wanted ? 1 : 0,
      .plan = NewPlan(transaction, job),
      .limits = LimitsOf(transaction.state(), record, {})};
  NoteLimits(transaction, job);
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

void HeedLimits(Transaction& transaction, Job& job) {
  if (!Samples(job.record.spec) || job.record.processes != Processes::kRunning) return;
  std::vector<RankLimit> limits =
      LimitsOf(transaction.state(), job.record, job.record.directive.limits);
  Directive& directive = job.record.directive;
  if (directive.limits == limits) return;
  directive.limits = std::move(limits);
  ++directive.number;
  const std::string why = LimitsText(job.record.spec.train().global_batch(),
                                     PlannedRanks(transaction.state(), job.record));
  transaction.Note(job, absl::StrCat("sampling: ", why.empty() ? "no node is limited" : why));
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

// Of the steps that all ranks have reported, the newest; absent: one has reported none.
std::optional<Step> ReportedByAll(const World& world) {
  std::optional<Step> least;
  for (const TrackedRank& rank : world.ranks) {
    if (!rank.last_step) return std::nullopt;
    least = std::min(least.value_or(rank.last_step->step), rank.last_step->step);
  }
  return least;
}

// The first one whose boundary no rank has certainly passed.
Step NextStep(const World& world) {
  Step next(0);
  for (const TrackedRank& rank : world.ranks) next = std::max(next, rank.counters.step);
  return next;
}

}  // namespace

void NoteSpeed(Job& job, const NodeName& node, const StepFigures& figures) {
  std::vector<SpeedRecord>& speeds = job.record.speeds;
  auto known = std::find_if(speeds.begin(), speeds.end(),
                            [&](const SpeedRecord& speed) { return speed.node == node; });
  if (known == speeds.end()) known = speeds.insert(speeds.end(), {node, SpeedModel()});
  known->speed.Add(figures.shard, figures.own_seconds);
}

void ReconsiderPlan(Transaction& transaction, Job& job) {
  JobRecord& record = job.record;
  PlanWatch& watch = job.world.plan_watch;
  const std::optional<Step> reported = ReportedByAll(job.world);
  const bool runs =
      record.state == JobState::kRunning && record.directive.run_state == RunState::kRun &&
      record.verdict == Verdict::kOpen && NextStep(job.world).value() < record.spec.train().steps();
  if (!runs || !PlansBySpeed(record.spec) || !reported || reported <= watch.looked_at) return;
  watch.looked_at = reported;
  const std::vector<PlannedRank> ranks = PlannedRanks(transaction.state(), record);
  std::optional<ShardPlan> plan = Reconsider(record.directive.plan.sequences, ranks, watch);
  if (!plan) return;
  plan->number = ++record.last_plan;
  plan->from_step = NextStep(job.world);
  plan->decided_ms = absl::ToUnixMillis(transaction.now());
  transaction.Note(
      job, absl::StrCat("plan: ", SharesText(plan->sequences, ranks), "; because ", plan->reason));
  record.directive.plan = *std::move(plan);
  ++record.directive.number;
  SendToAll(transaction, job);
}

}  // namespace espalier
