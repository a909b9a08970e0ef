#include "coordinator/planner/node_health.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/day_hours.h"

namespace espalier {
namespace {

// Well again above the limit by so much.
constexpr int kBatteryMargin = 5;
constexpr double kDiskMargin = 1.25;
constexpr absl::Duration kDiskPatience = absl::Minutes(1);
constexpr absl::Duration kShortestRecovery = absl::Seconds(10);
constexpr absl::Duration kLongestRecovery = absl::Minutes(10);
constexpr absl::Duration kOfLate = absl::Hours(1);
// More make no difference.
constexpr size_t kIllnessesKept = 16;

bool HasToRecover(Ailment ailment) {
  return ailment == Ailment::kBattery || ailment == Ailment::kLowBattery ||
         ailment == Ailment::kHeat || ailment == Ailment::kDisk;
}

}  // namespace

bool IsWithin(const google::protobuf::RepeatedPtrField<std::string>& hours,
              const v1::NodeReport& report, absl::Time wall) {
  const absl::Time local = wall + absl::Seconds(report.utc_offset_seconds());
  const absl::CivilMinute there = absl::ToCivilMinute(local, absl::UTCTimeZone());
  const int minute = there.hour() * 60 + there.minute();
  return std::any_of(hours.begin(), hours.end(), [&](const std::string& text) {
    const absl::StatusOr<DayHours> one = ParseDayHours(text);
    return one.ok() && one->Has(minute);
  });
}

NodeHealth::Finding NodeHealth::LookAtPower(const v1::NodeSpec& spec,
                                            const v1::NodeCondition& condition, Ailment before) {
  if (condition.power() != v1::NODE_POWER_BATTERY) return {};
  const int percent = condition.has_battery_percent() ? condition.battery_percent() : 100;
  if (spec.on_battery() == "leave") {
    return {Ailment::kBattery, "runs on its battery (on_battery is leave)"};
  }
  const int least = spec.least_battery_percent();
  const int margin = before == Ailment::kLowBattery ? kBatteryMargin : 0;
  if (least == 0 || percent > least + margin) return {};
  return {Ailment::kLowBattery,
          absl::StrCat("has ", percent, " % of its battery left (least_battery_percent is ", least,
                       ")")};
}

NodeHealth::Finding NodeHealth::LookAtHeat(const v1::NodeSpec& spec,
                                           const v1::NodeCondition& condition, Ailment before) {
  const bool critical = condition.heat() == v1::NODE_PRESSURE_CRITICAL;
  const bool still = before == Ailment::kHeat && condition.heat() == v1::NODE_PRESSURE_WARNING;
  if (spec.on_heat() != "leave" || !(critical || still)) return {};
  return {Ailment::kHeat, "is too hot (on_heat is leave)"};
}

NodeHealth::Finding NodeHealth::LookAtDisk(const v1::NodeSpec& spec,
                                           const v1::NodeResources& resources, Ailment before) {
  const int64_t free = resources.disk_free_bytes();
  const auto least = static_cast<double>(spec.least_disk_free_bytes());
  if (!resources.has_disk_free_bytes()) return {};
  const double limit = before == Ailment::kDisk ? kDiskMargin * least : least;
  if (least == 0 || static_cast<double>(free) >= limit) return {};
  return {Ailment::kDisk, absl::StrFormat("has %.2f GB left on its disk (least_disk_free_bytes is "
                                          "%.2f GB)",
                                          static_cast<double>(free) / 1e9, least / 1e9)};
}

NodeHealth::Finding NodeHealth::LookAtHours(const v1::NodeSpec& spec, const v1::NodeReport& report,
                                            absl::Time wall) {
  if (spec.hours().empty() || IsWithin(spec.hours(), report, wall)) return {};
  return {Ailment::kHours,
          absl::StrCat("may be used at ", absl::StrJoin(spec.hours(), ", "), " only (hours)")};
}

// All but the hours.
NodeHealth::Finding NodeHealth::LookAt(const v1::NodeSpec& spec, const v1::NodeReport& report,
                                       absl::Time now) {
  const v1::NodeCondition& condition = report.condition();
  Finding disk = LookAtDisk(spec, report.resources(), is_.ailment);
  if (disk.ailment == Ailment::kNone) disk_low_since_.reset();
  if (condition.about_to_sleep()) return {Ailment::kSleep, "is about to sleep"};
  for (Finding found :
       {LookAtHeat(spec, condition, is_.ailment), LookAtPower(spec, condition, is_.ailment)}) {
    if (found.ailment != Ailment::kNone) return found;
  }
  if (disk.ailment == Ailment::kNone) return {};
  if (!disk_low_since_) disk_low_since_ = heard_ ? now : absl::InfinitePast();
  const bool lasts = is_.ailment == Ailment::kDisk || now - *disk_low_since_ >= kDiskPatience;
  return lasts ? disk : Finding{};
}

bool NodeHealth::IsOver(absl::Time now) const {
  if (!HasToRecover(is_.ailment)) return true;
  absl::Duration recovery = kShortestRecovery;
  for (int i = 1; i < IllOfLate(now); ++i) recovery = std::min(2 * recovery, kLongestRecovery);
  return now - seen_ill_ >= recovery;
}

bool NodeHealth::Become(Finding found, absl::Time now) {
  if (found.ailment == is_.ailment) return false;
  if (is_.ailment == Ailment::kNone) {
    is_.fell_ill.push_back(now);
    if (is_.fell_ill.size() > kIllnessesKept) is_.fell_ill.erase(is_.fell_ill.begin());
  }
  is_.ailment = found.ailment;
  is_.why = std::move(found.why);
  is_.since = now;
  return true;
}

bool NodeHealth::Hear(const v1::NodeSpec& spec, const v1::NodeReport& report, const Moment& at) {
  Finding found = LookAt(spec, report, at.now);
  heard_ = true;
  if (found.ailment != Ailment::kNone) {
    seen_ill_ = at.now;
  } else if (is_.ailment == Ailment::kHours || !IsOver(at.now)) {
    return false;
  } else if (is_.ailment != Ailment::kNone) {
    found = LookAtHours(spec, report, at.wall);
  }
  return Become(std::move(found), at.now);
}

bool NodeHealth::Tick(const v1::NodeSpec& spec, const v1::NodeReport& report, const Moment& at) {
  // Where the hours were taken away meanwhile, it is well again.
  if (is_.ailment != Ailment::kHours && (is_.ailment != Ailment::kNone || spec.hours().empty())) {
    return false;
  }
  return Become(LookAtHours(spec, report, at.wall), at.now);
}

void NodeHealth::LookAnew(const v1::NodeSpec& spec, const v1::NodeReport& report,
                          const Moment& at) {
  *this = NodeHealth();
  Hear(spec, report, at);
  Tick(spec, report, at);
}

int NodeHealth::IllOfLate(absl::Time now) const {
  return static_cast<int>(std::count_if(is_.fell_ill.begin(), is_.fell_ill.end(),
                                        [&](absl::Time ill) { return now - ill <= kOfLate; }));
}

}  // namespace espalier
