// NodeHealth: whether jobs should be on a machine now: an announced sleep, a battery that runs
// down, heat, a full disk, or an hour of the day at which it is wanted for something else send them
// away before it goes by itself. By what its agent says and its NodeSpec allows. Used by
// coordinator/core. Plain value.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/node.pb.h"

namespace espalier {

// The numbers are in the journal.
enum class Ailment {
  kNone = 0,
  // The system has announced it, and waits half a minute for who has to leave.
  kSleep = 1,
  // It runs on its battery, and on_battery is "leave".
  kBattery = 2,
  // No more than least_battery_percent is left; 5 more, or a charger, and it is well again.
  kLowBattery = 3,
  // The system called it critical, and has not called it normal since.
  kHeat = 4,
  // Less than least_disk_free_bytes has been free for a minute (a checkpoint that is written takes
  // some for a while); a quarter more, and it is well again.
  kDisk = 5,
  // It is none of the `hours`, by the machine's own time of day.
  kHours = 6,
};

// What is remembered of it, also by the next espalierd.
struct Illness {
  Ailment ailment = Ailment::kNone;
  // "has 12 % of its battery left (least_battery_percent is 20)", for people, after the node's
  // name: the same words as long as the same ails it.
  std::string why;
  // When it fell ill or was well again.
  absl::Time since = absl::UnixEpoch();
  // The newest few times.
  std::vector<absl::Time> fell_ill;
};

// By the core's time, which takes a corrected clock in slowly, and waits for a machine that slept;
// and by espalierd's clock as it is, by which the hours of a day begin and end.
struct Moment {
  Moment(absl::Time both) : now(both), wall(both) {}  // NOLINT: most often they agree
  Moment(absl::Time now, absl::Duration ahead) : now(now), wall(now + ahead) {}
  absl::Time now;
  absl::Time wall;
};

// The machine's own time of day lies within one of these hours.
bool IsWithin(const google::protobuf::RepeatedPtrField<std::string>& hours,
              const v1::NodeReport& report, absl::Time wall);

class NodeHealth {
 public:
  NodeHealth() = default;
  // As it was when somebody looked last; it recovers from now on.
  NodeHealth(Illness illness, absl::Time now) : is_(std::move(illness)), seen_ill_(now) {}

  // With each report. True: it fell ill or is well again, or another thing ails it. What wavers
  // does not come and go: of battery, heat and disk it recovers for 10 s, twice as long for each
  // time that it fell ill within the hour, 10 minutes at most.
  bool Hear(const v1::NodeSpec& spec, const v1::NodeReport& report, const Moment& at);
  // A few times a second, with the newest report, and when an agent is heard of again: hours begin
  // and end for all nodes at one time.
  bool Tick(const v1::NodeSpec& spec, const v1::NodeReport& report, const Moment& at);
  // Whatever it was was never so: what counts is what the report says.
  void LookAnew(const v1::NodeSpec& spec, const v1::NodeReport& report, const Moment& at);

  Ailment ailment() const { return is_.ailment; }
  const std::string& why() const { return is_.why; }
  absl::Time since() const { return is_.since; }
  const Illness& illness() const { return is_; }
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
                             absl::Time wall);
  Finding LookAt(const v1::NodeSpec& spec, const v1::NodeReport& report, absl::Time now);
  bool IsOver(absl::Time now) const;
  bool Become(Finding found, absl::Time now);

  Illness is_;
  absl::Time seen_ill_ = absl::InfinitePast();
  bool heard_ = false;
  std::optional<absl::Time> disk_low_since_;
};

}  // namespace espalier
