#include "coordinator/agent/warm_memory.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/shared_segment.h"
#include "common/base/utf8.h"
#include "common/observe/log.h"

namespace espalier {
namespace {

// Of one node.
constexpr int kSegmentsMax = 1000;

bool IsNewer(const RegisteredSegment& segment, const v1::DropWarm& command) {
  return std::make_tuple(segment.record.history, segment.mark) >
         std::make_tuple(command.history(), command.step());
}

// Told at the report in which it is missed first. What a process has is gone with it.
void WarnOfLoss(const RegisteredSegment& segment, const v1::NodeReport& before) {
  const bool was_there =
      std::any_of(before.warm().begin(), before.warm().end(), [&](const v1::WarmState& warm) {
        return warm.job_id() == segment.record.job && warm.step() > 0;
      });
  if (!segment.lost || !segment.taken || !was_there) return;
  LogWarning(absl::StrCat(
      "the memory of job ", segment.record.job, " (", segment.name,
      ") was removed while its worker runs, so a fault will cost the steps since its last "
      "checkpoint; on Linux systemd-logind removes a user's from /dev/shm at log-out, unless "
      "`loginctl enable-linger USER` was said, or RemoveIPC=no in /etc/systemd/logind.conf"));
}

}  // namespace

void AddWarm(const std::string& folder, const std::string& node, const v1::NodeReport& before,
             v1::NodeReport& report) {
  const absl::StatusOr<std::vector<RegisteredSegment>> segments = ListSegments(folder, node);
  if (!segments.ok()) {
    *report.mutable_warm() = before.warm();
    report.set_warm_unknown(before.warm_unknown());
    return;
  }
  for (const RegisteredSegment& segment : *segments) {
    if (segment.lost && RemoveSegment(folder, segment.name)) continue;
    if (report.warm_size() >= kSegmentsMax) return;
    WarnOfLoss(segment, before);
    v1::WarmState& warm = *report.add_warm();
    warm.set_job_id(AsUtf8(segment.record.job));
    warm.set_history(segment.record.history);
    warm.set_step(segment.mark);
    warm.set_bytes(segment.record.bytes);
    if (segment.taken) warm.set_taken_by(segment.record.generation);
  }
}

void DropWarm(const std::string& folder, const std::string& node, const v1::DropWarm& command) {
  const absl::StatusOr<std::vector<RegisteredSegment>> segments = ListSegments(folder, node);
  if (!segments.ok()) return;
  for (const RegisteredSegment& segment : *segments) {
    if (segment.record.job != command.job_id() || IsNewer(segment, command)) continue;
    if (!RemoveSegment(folder, segment.name)) continue;
    LogInfo(absl::StrCat("gave back the memory of job ", command.job_id(), ", step ", segment.mark,
                         ", ", segment.record.bytes, " bytes"));
  }
}

}  // namespace espalier
