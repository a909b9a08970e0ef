#include "coordinator/planner/node_share.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace espalier {
namespace {

constexpr absl::Duration kBatteryRecovery = absl::Seconds(10);
// Of all processors, what is somebody's work, and what is none; and for how long.
constexpr double kWork = 0.1;
constexpr double kNoWork = 0.05;
constexpr absl::Duration kWorkLasts = absl::Seconds(10);
constexpr absl::Duration kNoWorkLasts = absl::Minutes(1);
constexpr double kSparedShare = 0.5;

}  // namespace

void NodeShare::LookAtLoad(const v1::NodeCondition& condition, absl::Time now) {
  const double load = condition.other_load();
  if (load < kWork) busy_since_.reset();
  if (load >= kNoWork) idle_since_.reset();
  if (load >= kWork && !busy_since_) busy_since_ = now;
  if (load < kNoWork && !idle_since_) idle_since_ = now;
  if (busy_since_ && now - *busy_since_ >= kWorkLasts) in_use_ = true;
  if (idle_since_ && now - *idle_since_ >= kNoWorkLasts) in_use_ = false;
}

void NodeShare::Look(const v1::NodeSpec& spec, const v1::NodeReport& report, const Moment& at) {
  const v1::NodeCondition& condition = report.condition();
  LookAtLoad(condition, at.now);
  if (condition.power() == v1::NODE_POWER_BATTERY) on_battery_at_ = at.now;
  const bool on_battery = on_battery_at_ && at.now - *on_battery_at_ < kBatteryRecovery;
  why_.clear();
  if (spec.on_battery() == "slow" && on_battery) {
    why_ = "runs on its battery (on_battery is slow)";
  } else if (IsWithin(spec.quiet_hours(), report, at.wall)) {
    why_ = absl::StrCat("is to be quiet at ", absl::StrJoin(spec.quiet_hours(), ", "),
                        " (quiet_hours)");
  } else if (spec.yield_to_user() && in_use_) {
    why_ = "is used by somebody (yield_to_user)";
  }
}

double NodeShare::Part(const v1::NodeSpec& spec) const {
  if (why_.empty()) return 1;
  return spec.has_spared_share() ? spec.spared_share() : kSparedShare;
}

double LargestShare(const v1::NodeSpec& spec) {
  return spec.has_largest_share() ? spec.largest_share() : 1;
}

void MergePolicy(const v1::NodeSpec& from, v1::NodeSpec& to) {
  v1::NodeSpec policy = from;
  policy.clear_name();
  policy.clear_address();
  policy.clear_profile();
  policy.clear_device();
  policy.clear_threads();
  policy.clear_memory_limit_bytes();
  policy.clear_relative_speed();
  policy.clear_worker();
  policy.clear_tls();
  if (!policy.hours().empty()) to.clear_hours();
  if (!policy.quiet_hours().empty()) to.clear_quiet_hours();
  to.MergeFrom(policy);
}

}  // namespace espalier
