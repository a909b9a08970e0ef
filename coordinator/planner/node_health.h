// Whether jobs should be on a machine now: a battery that runs down, heat, a full disk, or an hour
// of the day at which it is wanted for something else send them away before it goes by itself. By
// what its agent says and its NodeSpec allows. Used by coordinator/core. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

enum class Ailment {
  kNone,
  // The system has announced it, and waits half a minute for who has to leave.
  kSleep,
  // It runs on its battery, and on_battery is "leave".
  kBattery,
  // No more than least_battery_percent is left; 5 more, or a charger, and it is well again.
  kLowBattery,
  // The system called it critical, and has not called it normal since.
  kHeat,
  // Less than least_disk_free_bytes is free; a quarter more, and it is well again.
  kDisk,
  // It is none of the `hours`, by the machine's own time of day.
  kHours,
};

struct NodeHealth {
  Ailment ailment = Ailment::kNone;
  // "is on battery at 12 % (least_battery_percent is 20)", for people, after the node's name.
  std::string why;
};

// `before`: what ailed it when it was looked at last: it is well again a little later than it fell
// ill, so that what wavers around a limit does not come and go.
NodeHealth LookAt(const v1::NodeSpec& spec, const v1::NodeReport& report, absl::Time now,
                  Ailment before);

}  // namespace espalier
