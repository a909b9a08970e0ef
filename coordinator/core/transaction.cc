#include "coordinator/core/transaction.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "coordinator/core/facts.h"
#include "coordinator/core/job_state.h"

namespace espalier {

Job* Transaction::FindJob(const JobId& id) {
  const auto found = state_.jobs.find(id);
  return found == state_.jobs.end() ? nullptr : &found->second;
}

void Transaction::Enter(Job& job, JobState state, const std::string& reason) {
  JobRecord& record = job.record;
  ESPALIER_CHECK(!IsFinal(record.state), "a final state is never left");
  if (!TransitionAllowed(record.state, state)) {
    CheckFailed(__FILE__, __LINE__,
                absl::StrCat("job ", record.id.text(), " goes from ", JobStateName(record.state),
                             " to ", JobStateName(state), " (", reason,
                             "), which is not in the table of transitions"));
  }
  ESPALIER_CHECK(!IsFinal(state) || record.processes == Processes::kNone,
                 "a job ends when none of its processes is left");
  record.state = state;
  record.reason = reason;
  record.state_since = moment().wall;
  job.entered_at = now_;
  absl::Time progressed_at = absl::InfinitePast();
  for (const TrackedRank& rank : job.world.ranks) {
    progressed_at = std::max(progressed_at, rank.progressed_at);
  }
  job.interruption.Entered(state, job.world.ranks.empty() ? now_ : progressed_at, now_);
  Note(job, reason);
}

void Transaction::Note(Job& job, const std::string& text) {
  JobRecord& record = job.record;
  history_.push_back(AppendEvent{.job = record.id,
                                 .number = ++record.last_event,
                                 .time = moment().wall,
                                 .state = record.state,
                                 .text = text});
  Persist(job);
}

void Transaction::Persist(const Job& job) {
  changed_jobs_.insert(job.record.id);
  queue_changed_ = true;
  NoteHeldNodes(state_, job.record);
}

void Transaction::Do(SendDirective effect) {
  for (Effect& earlier : to_streams_) {
    auto* welcome = std::get_if<Welcome>(&earlier);
    auto* sent = std::get_if<SendDirective>(&earlier);
    if (welcome != nullptr && welcome->stream == effect.stream) {
      welcome->directive = effect.directive;
      return;
    }
    if (sent != nullptr && sent->stream == effect.stream) {
      *sent = std::move(effect);
      return;
    }
  }
  to_streams_.push_back(std::move(effect));
}

std::vector<Effect> Transaction::TakeEffects() {
  std::vector<Effect> effects;
  for (const JobId& id : changed_jobs_) effects.push_back(PersistJob{state_.jobs.at(id).record});
  for (const NodeName& name : changed_nodes_) {
    const Node* node = state_.nodes.Find(name);
    effects.push_back(PersistNode{node == nullptr ? state_.absent.at(name) : node->record});
  }
  for (std::vector<Effect>* part : {&history_, &to_streams_, &to_launcher_, &replies_}) {
    std::move(part->begin(), part->end(), std::back_inserter(effects));
  }
  return effects;
}

}  // namespace espalier
