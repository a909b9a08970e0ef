#include "tests/sim/journal_rules.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier::sim {
namespace {

auto GenerationOf(const JobRecord& record) {
  return std::tie(record.generation, record.nodes, record.external_id, record.processes,
                  record.directive, record.run_state_number, record.last_plan,
                  record.checkpoint_wanted);
}

auto StateOf(const JobRecord& record) {
  return std::tie(record.id, record.number, record.request_id, record.state, record.reason,
                  record.state_since, record.desired, record.verdict, record.verdict_reason,
                  record.last_event, record.submitted_at);
}

auto FaultsOf(const JobRecord& record) {
  return std::tie(record.unseen_ends, record.restarts, record.retry_at);
}

auto CheckpointOf(const std::optional<CheckpointRecord>& record) {
  return record ? std::make_tuple(record->step, record->path, record->error, record->at)
                : std::make_tuple(Step(-1), std::string(), std::string(), absl::UnixEpoch());
}

bool SameFailure(const std::optional<FailureRecord>& a, const std::optional<FailureRecord>& b) {
  if (!a || !b) return !a && !b;
  return std::tie(a->code, a->step, a->generation, a->nodes) ==
         std::tie(b->code, b->step, b->generation, b->nodes);
}

bool SameHolders(const std::vector<HolderRecord>& a, const std::vector<HolderRecord>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const HolderRecord& one, const HolderRecord& other) {
                      return one.node == other.node && one.step == other.step;
                    });
}

bool SameRecord(const JobRecord& a, const JobRecord& b) {
  return GenerationOf(a) == GenerationOf(b) && StateOf(a) == StateOf(b) &&
         FaultsOf(a) == FaultsOf(b) && SameFailure(a.failure, b.failure) &&
         CheckpointOf(a.checkpoint) == CheckpointOf(b.checkpoint) &&
         CheckpointOf(a.checkpoint_failure) == CheckpointOf(b.checkpoint_failure) &&
         SameHolders(a.holders, b.holders);
}

auto NodeOf(const NodeRecord& record) {
  return std::tie(record.faults, record.set_asides, record.set_aside_reason, record.set_aside_until,
                  record.has_agent, record.certificate);
}

}  // namespace

std::string FindForgotten(const ClusterState& state, const SimJournal& journal) {
  for (const auto& [id, job] : state.jobs) {
    const auto journaled = journal.jobs.find(id);
    if (journaled == journal.jobs.end() || !SameRecord(job.record, journaled->second)) {
      return absl::StrCat("the journal of ", id.text(), " is not what the coordinator knows");
    }
  }
  for (const Node& node : state.nodes) {
    const auto journaled = journal.nodes.find(node.record.name);
    if (journaled != journal.nodes.end() && NodeOf(node.record) != NodeOf(journaled->second)) {
      return absl::StrCat("the journal of node ", node.record.name.text(),
                          " is not what the coordinator knows");
    }
  }
  return "";
}

}  // namespace espalier::sim
