// Whether a job may run on a node, and the reason that people read when it may not.
#include "coordinator/core/usable.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

const NodeName kStudio("studio");

ClusterState State() {
  ClusterState state;
  state.versions.set_espalier("1.2.0");
  state.versions.set_open_mpi("4.1.4");
  state.nodes.Add({.name = kStudio});
  return state;
}

JobRecord Job(const std::string& id, int32_t priority = 0) {
  JobRecord record;
  record.id = JobId(id);
  record.spec.set_priority(priority);
  return record;
}

std::string Why(const ClusterState& state, const JobRecord& job, const KeptNodes& kept = {}) {
  const Node& node = *state.nodes.Find(kStudio);
  return Describe(state, node, Usable(state, node, job, kept));
}

AgentSession& Attach(ClusterState& state) {
  AgentSession& agent = state.nodes.Edit(kStudio)->agent;
  agent.state = AgentState::kAttached;
  agent.report.emplace();
  return agent;
}

TEST(Usable, AFreeNodeWithoutAnAgentIs) { EXPECT_EQ(Why(State(), Job("a")), ""); }

TEST(Usable, ANodeThatTheJobDoesNotNameIsNot) {
  JobRecord job = Job("a");
  job.spec.mutable_parallel()->add_nodes("macbook");
  EXPECT_EQ(Why(State(), job), "is not among the nodes that the job may use");
}

TEST(Usable, ANodeIsItsHoldersAlone) {
  ClusterState state = State();
  state.nodes.SetHeld(JobId("a"), {kStudio});
  EXPECT_EQ(Why(state, Job("a")), "");
  EXPECT_EQ(Why(state, Job("b")), "is held by job a");
}

TEST(Usable, WhatIsWrongWithANodeComesBeforeWhoHoldsIt) {
  ClusterState state = State();
  state.nodes.SetHeld(JobId("a"), {kStudio});
  state.nodes.Edit(kStudio)->record.set_aside_reason = "3 faults";
  EXPECT_EQ(Why(state, Job("a")), "is set aside (3 faults)");
  EXPECT_FALSE(WouldDo(Usable(state, *state.nodes.Find(kStudio), Job("a"), {}).obstacle));
}

TEST(Usable, AnAgentThatIsNotThereTakesTheNodeAway) {
  ClusterState state = State();
  Attach(state).state = AgentState::kSilent;
  EXPECT_EQ(Why(state, Job("a")), "has an agent that was not heard of within 10s");
  Attach(state).state = AgentState::kGone;
  EXPECT_EQ(Why(state, Job("a")), "has no agent now; start espalier-agent there");
}

TEST(Usable, VersionsThatCannotWorkTogetherDoNot) {
  ClusterState state = State();
  v1::NodeVersions& versions = *Attach(state).report->mutable_versions();
  versions.set_libtorch("2.6.0");
  EXPECT_EQ(Why(state, Job("a")), "") << "what nobody knows does not differ";
  versions.set_open_mpi("5.0.7");
  EXPECT_EQ(Why(state, Job("a")),
            "has other versions (Open MPI 5.0.7 there, 4.1.4 here); install the same");
  versions.set_espalier("1.1.0");
  EXPECT_EQ(Why(state, Job("a")),
            "has other versions (Espalier 1.1.0 there, 1.2.0 here; Open MPI 5.0.7 there, 4.1.4 "
            "here); install the same");
}

TEST(Usable, ClocksAreNotHoursApart) {
  ClusterState state = State();
  Attach(state).clock_ahead = absl::Minutes(59);
  EXPECT_EQ(Why(state, Job("a")), "");
  Attach(state).clock_ahead = absl::Minutes(80);
  EXPECT_EQ(Why(state, Job("a")), "has a clock about 1 hour ahead of espalierd's; set it");
  Attach(state).clock_ahead = -absl::Hours(26);
  EXPECT_EQ(Why(state, Job("a")), "has a clock about 26 hours behind espalierd's; set it");
}

TEST(Usable, ADeviceThatFailsInTheJobsPrecisionIsNot) {
  ClusterState state = State();
  v1::DeviceTrial& trial = *Attach(state).report->mutable_device();
  trial.set_device("mps");
  v1::PrecisionTrial& bf16 = *trial.add_precisions();
  bf16.set_precision("bf16");
  bf16.set_failed("attention, or its gradients");
  EXPECT_EQ(Why(state, Job("a")), "") << "which computes in fp32";
  JobRecord job = Job("a");
  job.spec.mutable_train()->set_precision(v1::PRECISION_BF16);
  EXPECT_EQ(Why(state, job),
            "has a device, mps, that fails its self-test (bf16: attention, or its gradients); "
            "choose another train.precision or launch.device");
  EXPECT_FALSE(WouldDo(Usable(state, *state.nodes.Find(kStudio), job, {}).obstacle));
  job.spec.mutable_launch()->set_device("cpu");
  EXPECT_EQ(Why(state, job), "") << "which is not the one that was tried";
  job.spec.mutable_launch()->set_device("auto");
  state.nodes.Edit(kStudio)->spec.set_device("cpu");
  EXPECT_EQ(Why(state, job), "") << "nor is the node's";
  state.nodes.Edit(kStudio)->spec.set_device("mps");
  state.nodes.SetHeld(JobId("a"), {kStudio});
  EXPECT_EQ(Why(state, job), "") << "what runs there has proven itself";
}

TEST(KeptNodes, AreKeptFromThoseOfTheSamePriorityThatCouldNotBeMadeToGiveThemBack) {
  KeptNodes kept;
  kept.Keep(Job("first", 5), KeptNodes::From::kSamePriority);
  EXPECT_EQ(Why(State(), Job("same", 5), kept), "is kept for job first, ahead in the queue");
  EXPECT_EQ(Why(State(), Job("lower", 4), kept), "");
}

TEST(KeptNodes, OfAJobThatStartsSoonAreKeptFromEverybodyElse) {
  KeptNodes kept;
  kept.Keep(Job("first", 5), KeptNodes::From::kEverybody, {kStudio});
  EXPECT_EQ(Why(State(), Job("lower"), kept), "is kept for job first, ahead in the queue");
  EXPECT_EQ(kept.AllKeptFrom(Job("lower")), nullptr) << "other nodes are not";
  ClusterState state = State();
  state.nodes.SetHeld(JobId("lower"), {kStudio});
  EXPECT_EQ(Why(state, Job("lower"), kept), "") << "the one that has it already goes on with it";
}

TEST(Usable, NotForAJobThatExcludesTheNode) {
  JobRecord job = Job("first");
  job.spec.mutable_parallel()->add_exclude_nodes("studio");
  EXPECT_EQ(Why(State(), job), "is not among the nodes that the job may use");
}

}  // namespace
}  // namespace espalier
