#include "coordinator/core/facts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {

absl::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kStarting:
      return "start";
    case Phase::kBoundary:
      return "boundary";
    case Phase::kDataWait:
      return "data wait";
    case Phase::kCompute:
      return "compute";
    case Phase::kExchange:
      return "exchange";
    case Phase::kUpdate:
      return "update";
    case Phase::kEvaluate:
      return "evaluate";
    case Phase::kCheckpoint:
      return "checkpoint";
    case Phase::kPaused:
      return "pause";
    case Phase::kStopping:
      return "stop";
    case Phase::kRollout:
      return "rollout";
    case Phase::kReward:
      return "reward";
  }
  return "unknown phase";
}

bool HoldsNodes(const JobRecord& record) {
  return record.processes != Processes::kNone || record.state == JobState::kRecovering;
}

bool IsExternal(const JobRecord& record) {
  return record.spec.launch().mode() == v1::LAUNCH_MODE_EXTERNAL;
}

absl::Duration FailureTimeout(const JobRecord& record) {
  return absl::Seconds(record.spec.health().failure_timeout_seconds());
}

bool HasRoom(const Job& job) {
  const JobRecord& record = job.record;
  return record.state == JobState::kRunning && !IsExternal(record) &&
         static_cast<int32_t>(record.nodes.size()) < MaxNodes(record);
}

bool HasGotOn(const JobRecord& record) {
  return record.step > Step(0) || record.kept > 0 || !record.practised_on.empty();
}

bool LacksWhatItHad(const Job& job) {
  if (job.world.ranks.size() != 1 || !HasGotOn(job.record)) return false;
  const absl::Status& failure = job.world.ranks.front().failure;
  return absl::IsNotFound(failure) || absl::IsPermissionDenied(failure) ||
         absl::IsDataLoss(failure);
}

bool GoesBefore(const JobRecord& a, const JobRecord& b) {
  const int32_t first = a.spec.priority();
  const int32_t second = b.spec.priority();
  return first != second ? first > second : a.number < b.number;
}

int32_t MaxNodes(const JobRecord& record) {
  const v1::ParallelSpec& parallel = record.spec.parallel();
  return parallel.has_max_nodes() ? parallel.max_nodes() : parallel.min_nodes();
}

bool MayUse(const v1::ParallelSpec& parallel, const NodeName& node) {
  const auto names = [&](const auto& list) {
    return std::find(list.begin(), list.end(), node.text()) != list.end();
  };
  return (parallel.nodes().empty() || names(parallel.nodes())) && !names(parallel.exclude_nodes());
}

bool MayUse(const JobRecord& record, const NodeName& node) {
  return MayUse(record.spec.parallel(), node);
}

SpeedModel SpeedOf(const JobRecord& record, const NodeName& node) {
  const auto known = std::find_if(record.speeds.begin(), record.speeds.end(),
                                  [&](const SpeedRecord& speed) { return speed.node == node; });
  return known == record.speeds.end() ? SpeedModel() : known->speed;
}

bool IsSetAside(const NodeRecord& node) { return !node.set_aside_reason.empty(); }

void NoteHeldNodes(ClusterState& state, const JobRecord& record) {
  static const std::vector<NodeName>& none = *new std::vector<NodeName>();
  state.nodes.SetHeld(record.id, HoldsNodes(record) ? record.nodes : none);
}

std::string NodeList(const std::vector<NodeName>& nodes) {
  if (nodes.empty()) return "no node";
  return absl::StrJoin(nodes, ", ", [](std::string* out, const NodeName& node) {
    absl::StrAppend(out, node.empty() ? absl::string_view("?") : node.text());
  });
}

std::string RankOnNode(const Job& job, Rank rank) {
  const auto index = static_cast<size_t>(rank.value());
  const auto& ranks = job.world.ranks;
  const std::string node = index < ranks.size() ? ranks[index].node.text() : "";
  return absl::StrCat("rank ", rank.value(), " on ", node.empty() ? "an unknown node" : node);
}

}  // namespace espalier
