#include "coordinator/planner/node_health.h"

#include <algorithm>

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

NodeHealth LookAtPower(const v1::NodeSpec& spec, const v1::NodeCondition& condition,
                       Ailment before) {
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

NodeHealth LookAtHeat(const v1::NodeSpec& spec, const v1::NodeCondition& condition,
                      Ailment before) {
  const bool critical = condition.heat() == v1::NODE_PRESSURE_CRITICAL;
  const bool still = before == Ailment::kHeat && condition.heat() == v1::NODE_PRESSURE_WARNING;
  if (spec.on_heat() != "leave" || !(critical || still)) return {};
  return {Ailment::kHeat, "is too hot (on_heat is leave)"};
}

NodeHealth LookAtDisk(const v1::NodeSpec& spec, const v1::NodeResources& resources,
                      Ailment before) {
  const int64_t free = resources.disk_free_bytes();
  const auto least = static_cast<double>(spec.least_disk_free_bytes());
  if (!resources.has_disk_free_bytes()) return {};
  const double limit = before == Ailment::kDisk ? kDiskMargin * least : least;
  if (least == 0 || static_cast<double>(free) >= limit) return {};
  return {Ailment::kDisk, absl::StrFormat("has %.2f GB left on its disk (least_disk_free_bytes is "
                                          "%.2f GB)",
                                          static_cast<double>(free) / 1e9, least / 1e9)};
}

NodeHealth LookAtHours(const v1::NodeSpec& spec, const v1::NodeReport& report, absl::Time now) {
  if (spec.hours().empty()) return {};
  const absl::Time local = now + absl::Seconds(report.utc_offset_seconds());
  const absl::CivilMinute there = absl::ToCivilMinute(local, absl::UTCTimeZone());
  const int minute = there.hour() * 60 + there.minute();
  const bool within =
      std::any_of(spec.hours().begin(), spec.hours().end(), [&](const std::string& text) {
        const absl::StatusOr<DayHours> hours = ParseDayHours(text);
        return hours.ok() && hours->Has(minute);
      });
  if (within) return {};
  return {Ailment::kHours,
          absl::StrCat("may be used at ", absl::StrJoin(spec.hours(), ", "), " only (hours)")};
}

}  // namespace

NodeHealth LookAt(const v1::NodeSpec& spec, const v1::NodeReport& report, absl::Time now,
                  Ailment before) {
  const v1::NodeCondition& condition = report.condition();
  if (condition.about_to_sleep()) return {Ailment::kSleep, "is about to sleep"};
  for (NodeHealth found :
       {LookAtHeat(spec, condition, before), LookAtPower(spec, condition, before),
        LookAtDisk(spec, report.resources(), before), LookAtHours(spec, report, now)}) {
    if (found.ailment != Ailment::kNone) return found;
  }
  return {};
}

}  // namespace espalier
