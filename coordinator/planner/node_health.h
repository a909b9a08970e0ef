// NodeHealth: whether jobs should be on a machine now: an announced sleep, a battery that runs
// down, heat, a full disk, or an hour of the day at which it is wanted for something else send them
// away before it goes by itself. By what its agent says and its NodeSpec allows. Used by
// coordinator/core. Plain value.
#pragma once

#include <optional>
#include <string>
#include <vector>

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
  // Less than least_disk_free_bytes has been free for a minute (a checkpoint that is written takes
  // some for a while); a quarter more, and it is well again.
  kDisk,
  // It is none of the `hours`, by the machine's own time of day.
  kHours,
};

class NodeHealth {
 public:
  // With each report. True: it fell ill or is well again, or another thing ails it. What wavers
  // does not come and go: of battery, heat and disk it recovers for 10 s, twice as long for each
  // time that it fell ill within the hour, 10 minutes at most.
  bool Hear(const v1::NodeSpec& spec, const v1::NodeReport& report, absl::Time now);
  // A few times a second, with the newest report, and when an agent attaches: hours begin and end
  // for all nodes at one time.
  bool Tick(const v1::NodeSpec& spec, const v1::NodeReport& report, absl::Time now);
  // Whatever it was is over and was never so, until the next report.
  void Forget() { *this = NodeHealth(); }

  Ailment ailment() const { return ailment_; }
  // "has 12 % of its battery left (least_battery_percent is 20)", for people, after the node's
  // name: the same words as long as the same ails it.
  const std::string& why() const { return why_; }
  // When it fell ill or was well again.
  absl::Time since() const { return since_; }
  // How often it fell ill within the hour.
  int IllOfLate(absl::Time now) const;

 private:
  struct Finding {
    Ailment ailment = Ailment::kNone;
    std::string why;
  };
  static Finding LookAtPower(const v1::NodeSpec& spec, const v1::NodeCondition& condition,
                             Ailment before);
  static Finding LookAtHeat(const v1::NodeSpec& spec, const v1::NodeCondition& condition,
                            Ailment before);
  static Finding LookAtDisk(const v1::NodeSpec& spec, const v1::NodeResources& resources,
                            Ailment before);
  static Finding LookAtHours(const v1::NodeSpec& spec, const v1::NodeReport& report,
                             absl::Time now);
  Finding LookAt(const v1::NodeSpec& spec, const v1::NodeReport& report, absl::Time now);
  bool IsOver(absl::Time now) const;
  bool Become(Finding found, absl::Time now);

  Ailment ailment_ = Ailment::kNone;
  std::string why_;
  absl::Time since_ = absl::UnixEpoch();
  absl::Time seen_ill_ = absl::InfinitePast();
  bool heard_ = false;
  std::optional<absl::Time> disk_low_since_;
  // The newest few.
  std::vector<absl::Time> fell_ill_;
};

}  // namespace espalier
