// Who holds the newest state of a job, and from whom a generation may start.
#include "coordinator/core/holders.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

const NodeName kStudio("studio");
const NodeName kMacbook("macbook");

struct Home {
  ClusterState state;
  JobRecord record;

  Home() {
    record.id = JobId("nano-1");
    state.nodes.Add({.name = kStudio}, "10.0.0.1");
    state.nodes.Add({.name = kMacbook}, "10.0.0.2");
  }
  bool Holds(const NodeName& node) const { return HoldsNewest(state, record, node); }
};

TEST(Holders, WithoutAPublishedStateAnyNodeWillDo) {
  const Home home;
  EXPECT_FALSE(NeedsHolder(home.record));
  EXPECT_EQ(NewestHeld(home.record), Step(0));
}

TEST(Holders, OnlyWhoHasTheNewestHoldsIt) {
  Home home;
  EXPECT_TRUE(NoteHolder(home.record, kStudio, Step(4)));
  EXPECT_TRUE(NoteHolder(home.record, kMacbook, Step(4)));
  EXPECT_TRUE(NoteHolder(home.record, kStudio, Step(8)));
  EXPECT_TRUE(NeedsHolder(home.record));
  EXPECT_TRUE(home.Holds(kStudio));
  EXPECT_FALSE(home.Holds(kMacbook));
}

TEST(Holders, AReportThatComesLateTakesNothingBack) {
  Home home;
  NoteHolder(home.record, kStudio, Step(8));
  EXPECT_FALSE(NoteHolder(home.record, kStudio, Step(4)));
  EXPECT_EQ(NewestHeld(home.record), Step(8));
}

TEST(Holders, NodesOfOneAddressShareADisk) {
  Home home;
  home.state.nodes.Add({.name = NodeName("second")}, "10.0.0.1");
  NoteHolder(home.record, kStudio, Step(4));
  EXPECT_TRUE(home.Holds(NodeName("second")));
  EXPECT_FALSE(home.Holds(kMacbook));
}

TEST(Holders, WhatAnAgentSeesInItsStateFolderCounts) {
  Home home;
  NoteHolder(home.record, kStudio, Step(4));
  AgentSession& agent = home.state.nodes.Edit(kMacbook)->agent;
  agent.state = AgentState::kAttached;
  v1::HeldState& held = *agent.report.emplace().add_held();
  held.set_job_id("nano-1");
  held.set_step(3);
  EXPECT_FALSE(home.Holds(kMacbook));
  agent.report->mutable_held(0)->set_step(4);
  EXPECT_TRUE(home.Holds(kMacbook));
  agent.state = AgentState::kGone;
  EXPECT_FALSE(home.Holds(kMacbook));
}

TEST(Holders, WithADiskThatAllReachAnyNodeWillDo) {
  Home home;
  home.record.spec.mutable_checkpoint()->set_shared(true);
  NoteHolder(home.record, kStudio, Step(4));
  EXPECT_FALSE(NeedsHolder(home.record));
}

TEST(Holders, AStateThatEveryHolderHasLostIsGone) {
  Home home;
  home.record.checkpoint = CheckpointRecord{.step = Step(4)};
  NoteHolder(home.record, kStudio, Step(4));
  EXPECT_FALSE(StateIsGone(home.record));
  EXPECT_EQ(NoteFound(home.record, kStudio, Step(0)), Step(4));
  EXPECT_TRUE(StateIsGone(home.record));
  EXPECT_TRUE(NeedsHolder(home.record));
  ForgetHolders(home.record);
  EXPECT_FALSE(NeedsHolder(home.record));
}

// A job of an older espalierd, which kept no holders.
TEST(Holders, ACheckpointOfWhichNoHolderIsKnownHoldsNobodyUp) {
  Home home;
  home.record.checkpoint = CheckpointRecord{.step = Step(4)};
  EXPECT_FALSE(NeedsHolder(home.record));
}

}  // namespace
}  // namespace espalier
