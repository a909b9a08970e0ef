// When a machine is spared, and what changes in a policy.
#include "coordinator/planner/node_share.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

struct Machine {
  v1::NodeSpec spec;
  v1::NodeReport report;
  absl::Time now = absl::FromCivil(absl::CivilHour(2026, 11, 24, 12), absl::UTCTimeZone());
  NodeShare share;

  double PartAfter(absl::Duration time) {
    now += time;
    share.Look(spec, report, now);
    return share.Part(spec);
  }
  void Load(double load) { report.mutable_condition()->set_other_load(load); }
  // It is at this load for so long, in reports.
  double Loaded(double load, absl::Duration time) {
    Load(load);
    double part = share.Part(spec);
    for (absl::Duration spent; spent < time; spent += absl::Seconds(2)) {
      part = PartAfter(absl::Seconds(2));
    }
    return part;
  }
};

TEST(NodeShare, AMachineComputesAllThatItCanUnlessItsSpecSaysOtherwise) {
  Machine machine;
  machine.report.mutable_condition()->set_power(v1::NODE_POWER_BATTERY);
  EXPECT_EQ(machine.Loaded(1, absl::Minutes(5)), 1);
  EXPECT_EQ(machine.share.why(), "");
  EXPECT_EQ(LargestShare(machine.spec), 1);
}

TEST(NodeShare, ABatterySparesUntilTenSecondsAfterItsUse) {
  Machine machine;
  machine.spec.set_on_battery("slow");
  machine.spec.set_spared_share(0.25);
  machine.report.mutable_condition()->set_power(v1::NODE_POWER_BATTERY);
  EXPECT_EQ(machine.PartAfter(absl::Seconds(2)), 0.25);
  EXPECT_EQ(machine.share.why(), "runs on its battery (on_battery is slow)");
  machine.report.mutable_condition()->set_power(v1::NODE_POWER_MAINS);
  EXPECT_EQ(machine.PartAfter(absl::Seconds(9)), 0.25);
  EXPECT_EQ(machine.PartAfter(absl::Seconds(1)), 1);
}

TEST(NodeShare, QuietHoursAreThoseOfTheMachine) {
  Machine machine;
  machine.spec.add_quiet_hours("13:00-14:00");
  EXPECT_EQ(machine.PartAfter(absl::Seconds(0)), 1);
  machine.report.set_utc_offset_seconds(3600);
  EXPECT_EQ(machine.PartAfter(absl::Seconds(0)), 0.5) << "half, unless spared_share says";
  EXPECT_EQ(machine.share.why(), "is to be quiet at 13:00-14:00 (quiet_hours)");
  EXPECT_EQ(machine.PartAfter(absl::Hours(1)), 1);
}

TEST(NodeShare, WhoWorksThereIsYieldedToAndAMomentOfLoadIsNobody) {
  Machine machine;
  machine.spec.set_yield_to_user(true);
  EXPECT_EQ(machine.Loaded(0.9, absl::Seconds(8)), 1) << "a moment";
  EXPECT_EQ(machine.Loaded(0, absl::Seconds(2)), 1);
  EXPECT_EQ(machine.Loaded(0.3, absl::Seconds(12)), 0.5);
  EXPECT_EQ(machine.share.why(), "is used by somebody (yield_to_user)");
  EXPECT_EQ(machine.Loaded(0.07, absl::Minutes(10)), 0.5) << "less, but not nothing";
  EXPECT_EQ(machine.Loaded(0.01, absl::Seconds(58)), 0.5);
  EXPECT_EQ(machine.Loaded(0.01, absl::Seconds(6)), 1);
}

TEST(NodeShare, APolicyReplacesWhatItSaysAndNothingElse) {
  v1::NodeSpec node;
  node.set_name("macbook");
  node.set_relative_speed(2);
  node.set_on_heat("ignore");
  node.add_hours("22:00-07:00");
  v1::NodeSpec policy;
  policy.set_name("other");
  policy.set_relative_speed(9);
  policy.set_on_battery("slow");
  policy.add_hours("12:00-13:00");
  MergePolicy(policy, node);
  EXPECT_EQ(node.ShortDebugString(),
            "name: \"macbook\" relative_speed: 2 on_battery: \"slow\" on_heat: \"ignore\" hours: "
            "\"12:00-13:00\"");
}

}  // namespace
}  // namespace espalier
