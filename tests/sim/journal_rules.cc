#include "tests/sim/journal_rules.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace espalier::sim {
namespace {

// As the journal writes it.
int64_t Us(absl::Time time) { return absl::ToUnixMicros(time); }

auto GenerationOf(const JobRecord& record) {
  return std::tie(record.generation, record.nodes, record.trained_on, record.practised_on,
                  record.external_id, record.processes, record.directive, record.run_state_number,
                  record.last_plan, record.checkpoint_wanted, record.called_off, record.warnings);
}

auto StateOf(const JobRecord& record) {
  return std::tie(record.id, record.number, record.request_id, record.state, record.reason,
                  record.desired, record.verdict, record.verdict_reason, record.last_event);
}

// What is final is not written again, though the clock was set back to before its end.
bool SameTimes(const JobRecord& state, const JobRecord& journaled) {
  const int64_t since = Us(state.state_since);
  return Us(state.submitted_at) == Us(journaled.submitted_at) &&
         (since == Us(journaled.state_since) ||
          (IsFinal(state.state) && since < Us(journaled.state_since)));
}

auto FaultsOf(const JobRecord& record) {
  return std::make_tuple(record.unseen_ends, record.restarts, Us(record.retry_at),
                         record.unexplained, record.unheard);
}

auto CheckpointOf(const std::optional<CheckpointRecord>& record) {
  return record ? std::make_tuple(record->step, record->path, record->error, Us(record->at))
                : std::make_tuple(Step(-1), std::string(), std::string(), int64_t{0});
}

bool SameFailure(const std::optional<FailureRecord>& a, const std::optional<FailureRecord>& b) {
  if (!a || !b) return !a && !b;
  return std::tie(a->code, a->step, a->generation, a->nodes) ==
         std::tie(b->code, b->step, b->generation, b->nodes);
}

bool SameHolders(const std::vector<HolderRecord>& a, const std::vector<HolderRecord>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const HolderRecord& one, const HolderRecord& other) {
                      return one.node == other.node && one.step == other.step &&
                             one.passed_over == other.passed_over;
                    });
}

// The first part that differs; empty: none.
std::string Difference(const JobRecord& a, const JobRecord& b) {
  if (GenerationOf(a) != GenerationOf(b)) return "its generation";
  if (StateOf(a) != StateOf(b) || !SameTimes(a, b)) return "its state";
  if (FaultsOf(a) != FaultsOf(b)) return "its restarts";
  if (!SameFailure(a.failure, b.failure)) return "its last failure";
  if (CheckpointOf(a.checkpoint) != CheckpointOf(b.checkpoint)) return "its checkpoint";
  if (CheckpointOf(a.checkpoint_failure) != CheckpointOf(b.checkpoint_failure)) {
    return "its last checkpoint that failed";
  }
  return SameHolders(a.holders, b.holders) ? "" : "who holds its state";
}

bool SameNode(const NodeRecord& a, const NodeRecord& b) {
  const auto same = [](absl::Time one, absl::Time other) { return Us(one) == Us(other); };
  return std::equal(a.faults.begin(), a.faults.end(), b.faults.begin(), b.faults.end(), same) &&
         same(a.set_aside_until, b.set_aside_until) &&
         a.joined.has_value() == b.joined.has_value() &&
         a.invitation.has_value() == b.invitation.has_value() &&
         a.illness.ailment == b.illness.ailment && same(a.illness.since, b.illness.since) &&
         std::tie(a.set_asides, a.set_aside_reason, a.drained, a.has_agent, a.certificate,
                  a.serials, a.revoked,
                  a.joined_as) == std::tie(b.set_asides, b.set_aside_reason, b.drained, b.has_agent,
                                           b.certificate, b.serials, b.revoked, b.joined_as);
}

}  // namespace

bool StartsAgainUncounted(const AppendEvent& row, const SimJournal& journal) {
  for (const char* free : {"; goes on without ", "; tries again after "}) {
    if (absl::StrContains(row.text, free)) return true;
  }
  const auto job = journal.jobs.find(row.job);
  return job != journal.jobs.end() && job->second.desired == DesiredState::kPauseHard;
}

std::string FindForgotten(const ClusterState& state, const SimJournal& journal) {
  for (const auto& [id, job] : state.jobs) {
    const auto journaled = journal.jobs.find(id);
    if (journaled == journal.jobs.end()) return absl::StrCat(id.text(), " is not in the journal");
    const std::string what = Difference(job.record, journaled->second);
    if (!what.empty()) {
      return absl::StrCat("the journal of ", id.text(), " forgets ", what);
    }
  }
  for (const Node& node : state.nodes) {
    const auto journaled = journal.nodes.find(node.record.name);
    if (journaled != journal.nodes.end() && !SameNode(node.record, journaled->second)) {
      return absl::StrCat("the journal of node ", node.record.name.text(),
                          " is not what the coordinator knows");
    }
  }
  return "";
}

}  // namespace espalier::sim
