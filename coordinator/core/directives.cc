#include "coordinator/core/directives.h"

#include <algorithm>

#include "coordinator/core/planner.h"

namespace espalier {
namespace {

void SendToAll(Context& context, Job& job) {
  context.Persist(job);
  for (const TrackedRank& rank : job.world.ranks) {
    if (rank.stream) context.Do(SendDirective{*rank.stream, job.record.directive});
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

void ChangeDirective(Context& context, Job& job, const DirectiveChange& change) {
  Directive& directive = job.record.directive;
  if (directive.run_state == change.run_state &&
      directive.checkpoint_before_stop == change.checkpoint_before_stop) {
    return;
  }
  ++directive.number;
  if (directive.run_state != change.run_state) job.record.run_state_number = directive.number;
  directive.run_state = change.run_state;
  directive.checkpoint_before_stop = change.checkpoint_before_stop;
  SendToAll(context, job);
}

void AskForCheckpoint(Context& context, Job& job) {
  job.record.checkpoint_wanted = true;
  ++job.record.directive.checkpoint_request;
  ++job.record.directive.number;
  SendToAll(context, job);
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

}  // namespace espalier
