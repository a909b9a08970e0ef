// When jobs are to leave a machine, and when they may come back.
#include "coordinator/planner/node_health.h"

#include <gtest/gtest.h>

#include <vector>

namespace espalier {
namespace {

struct Machine {
  v1::NodeSpec spec;
  v1::NodeReport report;
  absl::Time now = absl::FromCivil(absl::CivilHour(2026, 11, 23, 12), absl::UTCTimeZone());
  NodeHealth health;

  Machine() {
    spec.set_on_battery("ignore");
    spec.set_least_battery_percent(20);
    spec.set_on_heat("leave");
    spec.set_least_disk_free_bytes(1'000'000'000);
    report.mutable_condition()->set_power(v1::NODE_POWER_MAINS);
    report.mutable_condition()->set_heat(v1::NODE_PRESSURE_NORMAL);
    report.mutable_resources()->set_disk_free_bytes(5'000'000'000);
  }
  void Battery(int percent) {
    report.mutable_condition()->set_power(v1::NODE_POWER_BATTERY);
    report.mutable_condition()->set_battery_percent(percent);
  }
  void Heat(v1::NodePressure heat) { report.mutable_condition()->set_heat(heat); }
  void Disk(int64_t free) { report.mutable_resources()->set_disk_free_bytes(free); }
  void At(int hour, int minute) {
    now = absl::FromCivil(absl::CivilMinute(2026, 11, 23, hour, minute), absl::UTCTimeZone());
  }
  // What ails it by a report of now.
  Ailment Look() {
    health.Hear(spec, report, now);
    health.Tick(spec, report, now);
    return health.ailment();
  }
  // By one that comes later.
  Ailment LookAfter(absl::Duration time) {
    now += time;
    return Look();
  }
  // By the first that says that all is well.
  Ailment LookWhenRecovered() {
    Look();
    return LookAfter(absl::Minutes(10));
  }
};

TEST(NodeHealth, AMachineThatSaysNothingIsWell) {
  Machine machine;
  machine.report.Clear();
  EXPECT_EQ(machine.Look(), Ailment::kNone);
  EXPECT_EQ(machine.LookAfter(absl::Minutes(5)), Ailment::kNone);
}

TEST(NodeHealth, ALowBatteryIsLeftUntilItHasALittleMoreOrIsCharged) {
  Machine machine;
  machine.Battery(21);
  EXPECT_EQ(machine.Look(), Ailment::kNone);
  machine.Battery(20);
  EXPECT_EQ(machine.Look(), Ailment::kLowBattery);
  EXPECT_EQ(machine.health.why(), "has 20 % of its battery left (least_battery_percent is 20)");
  machine.Battery(25);
  EXPECT_EQ(machine.Look(), Ailment::kLowBattery) << "it wavers";
  machine.Battery(26);
  EXPECT_EQ(machine.LookWhenRecovered(), Ailment::kNone);
  machine.Battery(10);
  EXPECT_EQ(machine.Look(), Ailment::kLowBattery);
  machine.report.mutable_condition()->set_power(v1::NODE_POWER_MAINS);
  EXPECT_EQ(machine.LookWhenRecovered(), Ailment::kNone);
}

TEST(NodeHealth, ABatteryIsLeftAtOnceWhereItsOwnerSaysSo) {
  Machine machine;
  machine.Battery(100);
  EXPECT_EQ(machine.Look(), Ailment::kNone);
  machine.spec.set_on_battery("leave");
  EXPECT_EQ(machine.Look(), Ailment::kBattery);
  EXPECT_EQ(machine.health.why(), "runs on its battery (on_battery is leave)");
}

TEST(NodeHealth, ABatteryThatDoesNotSayWhatItHasLeftIsUsed) {
  Machine machine;
  machine.report.mutable_condition()->set_power(v1::NODE_POWER_BATTERY);
  EXPECT_EQ(machine.Look(), Ailment::kNone);
}

TEST(NodeHealth, AMachineThatIsTooHotIsLeftUntilItsHeatIsNormal) {
  Machine machine;
  machine.Heat(v1::NODE_PRESSURE_WARNING);
  EXPECT_EQ(machine.Look(), Ailment::kNone);
  machine.Heat(v1::NODE_PRESSURE_CRITICAL);
  EXPECT_EQ(machine.Look(), Ailment::kHeat);
  machine.Heat(v1::NODE_PRESSURE_WARNING);
  EXPECT_EQ(machine.Look(), Ailment::kHeat);
  machine.Heat(v1::NODE_PRESSURE_NORMAL);
  EXPECT_EQ(machine.LookWhenRecovered(), Ailment::kNone);
  machine.Heat(v1::NODE_PRESSURE_CRITICAL);
  machine.spec.set_on_heat("ignore");
  EXPECT_EQ(machine.Look(), Ailment::kNone);
}

TEST(NodeHealth, ADiskThatStaysFullIsLeftUntilAQuarterMoreIsFree) {
  Machine machine;
  EXPECT_EQ(machine.Look(), Ailment::kNone);
  machine.Disk(999'999'999);
  EXPECT_EQ(machine.Look(), Ailment::kNone);
  EXPECT_EQ(machine.LookAfter(absl::Seconds(59)), Ailment::kNone);
  EXPECT_EQ(machine.LookAfter(absl::Seconds(1)), Ailment::kDisk);
  EXPECT_EQ(machine.health.why(),
            "has 1.00 GB left on its disk (least_disk_free_bytes is 1.00 GB)");
  machine.Disk(1'249'999'999);
  EXPECT_EQ(machine.LookWhenRecovered(), Ailment::kDisk);
  machine.Disk(1'250'000'000);
  EXPECT_EQ(machine.LookWhenRecovered(), Ailment::kNone);
}

TEST(NodeHealth, ACheckpointThatFillsTheDiskForAWhileIsNoReasonToLeave) {
  Machine machine;
  machine.Look();
  for (int i = 0; i < 10; ++i) {
    machine.Disk(1);
    EXPECT_EQ(machine.LookAfter(absl::Seconds(40)), Ailment::kNone);
    machine.Disk(5'000'000'000);
    EXPECT_EQ(machine.LookAfter(absl::Seconds(40)), Ailment::kNone);
  }
}

TEST(NodeHealth, ADiskThatIsFullWhenTheAgentComesIsFullAtOnceUnlessNobodyKnows) {
  Machine machine;
  machine.Disk(0);
  EXPECT_EQ(machine.Look(), Ailment::kDisk);
  Machine silent;
  silent.report.mutable_resources()->clear_disk_free_bytes();
  EXPECT_EQ(silent.Look(), Ailment::kNone);
}

TEST(NodeHealth, ItRecoversLongerEachTimeThatItFallsIll) {
  Machine machine;
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    machine.Heat(v1::NODE_PRESSURE_CRITICAL);
    machine.LookAfter(absl::Seconds(1));
    ASSERT_EQ(machine.LookAfter(absl::Seconds(30)), Ailment::kHeat);
    machine.Heat(v1::NODE_PRESSURE_NORMAL);
    const absl::Time cool = machine.now;
    while (machine.Look() != Ailment::kNone) machine.now += absl::Seconds(1);
    seconds.push_back(absl::ToDoubleSeconds(machine.now - cool));
  }
  EXPECT_EQ(seconds, (std::vector<double>{10, 20, 40, 80, 160, 320, 600, 600, 600}));
  EXPECT_EQ(machine.health.IllOfLate(machine.now), 9);
  machine.health.LookAnew(machine.spec, machine.report, machine.now);
  EXPECT_EQ(machine.health.IllOfLate(machine.now), 0);
}

TEST(NodeHealth, AMachineIsUsedAtItsHoursByItsOwnTimeOfDay) {
  Machine machine;
  machine.spec.add_hours("22:00-07:00");
  machine.spec.add_hours("12:30-13:30");
  machine.report.set_utc_offset_seconds(3600);
  machine.At(11, 0);
  EXPECT_EQ(machine.Look(), Ailment::kHours);
  EXPECT_EQ(machine.health.why(), "may be used at 22:00-07:00, 12:30-13:30 only (hours)");
  machine.At(11, 30);
  EXPECT_EQ(machine.Look(), Ailment::kNone) << "it is 12:30 there";
  machine.At(20, 59);
  EXPECT_EQ(machine.Look(), Ailment::kHours);
  machine.At(21, 0);
  EXPECT_EQ(machine.Look(), Ailment::kNone);
}

// espalierd's machine slept, and the core's time with it.
TEST(NodeHealth, HoursAreThoseOfTheClockAndNotOfTheCoresTime) {
  Machine machine;
  machine.spec.add_hours("22:00-07:00");
  machine.At(23, 0);
  EXPECT_EQ(machine.Look(), Ailment::kNone);
  EXPECT_TRUE(machine.health.Tick(machine.spec, machine.report, {machine.now, absl::Hours(9)}));
  EXPECT_EQ(machine.health.ailment(), Ailment::kHours);
  EXPECT_EQ(machine.health.since(), machine.now);
}

TEST(NodeHealth, AMachineThatIsAboutToSleepIsLeftUntilItIsAwake) {
  Machine machine;
  machine.report.mutable_condition()->set_about_to_sleep(true);
  machine.Heat(v1::NODE_PRESSURE_CRITICAL);
  EXPECT_EQ(machine.Look(), Ailment::kSleep);
  machine.report.mutable_condition()->set_about_to_sleep(false);
  machine.Heat(v1::NODE_PRESSURE_NORMAL);
  EXPECT_EQ(machine.Look(), Ailment::kNone) << "at once";
}

TEST(NodeHealth, TheMostUrgentIsTold) {
  Machine machine;
  machine.Disk(1);
  EXPECT_EQ(machine.Look(), Ailment::kDisk);
  machine.Battery(3);
  EXPECT_EQ(machine.Look(), Ailment::kLowBattery);
  machine.Heat(v1::NODE_PRESSURE_CRITICAL);
  EXPECT_EQ(machine.Look(), Ailment::kHeat);
}

}  // namespace
}  // namespace espalier
