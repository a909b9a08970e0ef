// Transaction: one call of Advance under way: the state it changes, the time, and the effects so
// far. Used by coordinator/core. One thread.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/state.h"

namespace espalier {

class Transaction {
 public:
  Transaction(ClusterState& state, absl::Time now) : state_(state), now_(now) {}

  ClusterState& state() { return state_; }
  absl::Time now() const { return now_; }
  Moment moment() const { return {now_, state_.wall_ahead}; }
  // Null when there is none.
  Job* FindJob(const JobId& id);

  // A transition, one of job_state.h: state, reason and time change together, and the job's
  // history gets a row.
  void Enter(Job& job, JobState state, const std::string& reason);
  // A row of the job's history without a transition.
  void Note(Job& job, const std::string& text);
  // The record has changed otherwise; called after the change.
  void Persist(const Job& job);
  void Persist(const NodeRecord& node) { changed_nodes_.insert(node.name); }

  void Do(ForgetJob effect) { history_.emplace_back(std::move(effect)); }
  void Do(Welcome effect) { to_streams_.emplace_back(std::move(effect)); }
  // Replaces an older directive to the same worker.
  void Do(SendDirective effect);
  void Do(RenewLease effect) { to_streams_.emplace_back(effect); }
  void Do(CloseStream effect) { to_streams_.emplace_back(std::move(effect)); }
  void Do(DropMemory effect) { to_streams_.emplace_back(std::move(effect)); }
  void Do(Rehearse effect) { to_streams_.emplace_back(std::move(effect)); }
  void Do(Launch effect) { to_launcher_.emplace_back(std::move(effect)); }
  void Do(Kill effect) { to_launcher_.emplace_back(std::move(effect)); }
  void Do(Reply effect) { replies_.emplace_back(std::move(effect)); }

  // The queue must be looked at: a job's record changed, or what may use a node did.
  void QueueChanged() { queue_changed_ = true; }
  bool TakeQueueChanged() { return std::exchange(queue_changed_, false); }

  // All effects in the order in which they must be applied. Ends the transaction's use.
  std::vector<Effect> TakeEffects();

 private:
  ClusterState& state_;
  const absl::Time now_;
  bool queue_changed_ = false;
  std::set<JobId> changed_jobs_;
  std::set<NodeName> changed_nodes_;
  std::vector<Effect> history_;
  std::vector<Effect> to_streams_;
  std::vector<Effect> to_launcher_;
  std::vector<Effect> replies_;
};

}  // namespace espalier
