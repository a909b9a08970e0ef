#include "coordinator/core/names.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {

absl::string_view JobStateName(JobState state) {
  switch (state) {
    case JobState::kQueued:
      return "QUEUED";
    case JobState::kLaunching:
      return "LAUNCHING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kPausing:
      return "PAUSING";
    case JobState::kPausedSoft:
      return "PAUSED_SOFT";
    case JobState::kPausedHard:
      return "PAUSED_HARD";
    case JobState::kRegrouping:
      return "REGROUPING";
    case JobState::kRecovering:
      return "RECOVERING";
    case JobState::kCancelling:
      return "CANCELLING";
    case JobState::kCompleted:
      return "COMPLETED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCancelled:
      return "CANCELLED";
  }
  return "UNKNOWN";
}

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
  }
  return "unknown phase";
}

bool IsFinal(JobState state) {
  return state == JobState::kCompleted || state == JobState::kFailed ||
         state == JobState::kCancelled;
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
