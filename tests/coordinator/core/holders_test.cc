// Who holds the newest state of a job, and from whom a generation may start.
#include "coordinator/core/holders.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "coordinator/core/facts.h"
#include "coordinator/core/usable.h"

namespace espalier {
namespace {

const NodeName kStudio("studio");
const NodeName kMacbook("macbook");

v1::NodeSpec At(const std::string& address) {
  v1::NodeSpec spec;
  spec.set_address(address);
  return spec;
}

struct Home {
  ClusterState state;
  JobRecord record;

  Home() {
    record.id = JobId("nano-1");
    record.spec.mutable_train()->set_steps(100);
    state.nodes.Add({.name = kStudio}, At("10.0.0.1"));
    state.nodes.Add({.name = kMacbook}, At("10.0.0.2"));
  }
  Holders Look() const { return Holders(state, record); }
  bool Holds(const NodeName& node) const { return Look().Has(node); }
  // The node's agent reports this step, of this history, in its memory.
  void Remember(const NodeName& node, int64_t step, int64_t history = 0) {
    const std::vector<NodeName> nodes = std::exchange(record.nodes, {node});
    NoteLaunch(record);
    record.nodes = nodes;
    AgentSession& agent = state.nodes.Edit(node)->agent;
    agent.state = AgentState::kAttached;
    v1::WarmState& warm = *agent.report.emplace().add_warm();
    warm.set_job_id(record.id.text());
    warm.set_step(step);
    warm.set_history(history);
  }
  // The node's agent sees a checkpoint of this step in its state folder.
  void List(const NodeName& node, int64_t step) {
    AgentSession& agent = state.nodes.Edit(node)->agent;
    agent.state = AgentState::kAttached;
    v1::HeldState& held = *agent.report.emplace().add_held();
    held.set_job_id(record.id.text());
    held.set_step(step);
  }
  // A rank there looks for the newest.
  std::optional<Step> Find(const NodeName& node, int64_t step) {
    return NoteFound(record, node, Step(step), NewestSeen(*state.nodes.Find(node), record.id));
  }
  std::vector<int64_t> Spare(const NodeName& node) const {
    std::vector<int64_t> steps;
    Node asked = *state.nodes.Find(node);
    for (const v1::WarmState& one : TakeSpareMemory(state, asked)) {
      steps.push_back(one.step());
    }
    return steps;
  }
};

TEST(Holders, WithoutAPublishedStateAnyNodeWillDo) {
  const Home home;
  EXPECT_FALSE(home.Look().needed());
  EXPECT_EQ(home.Look().newest(), Step(0));
}

TEST(Holders, OnlyWhoHasTheNewestHoldsIt) {
  Home home;
  EXPECT_TRUE(NoteHolder(home.record, kStudio, Step(4)));
  EXPECT_TRUE(NoteHolder(home.record, kMacbook, Step(4)));
  EXPECT_TRUE(NoteHolder(home.record, kStudio, Step(8)));
  EXPECT_TRUE(home.Look().needed());
  EXPECT_TRUE(home.Holds(kStudio));
  EXPECT_FALSE(home.Holds(kMacbook));
}

TEST(Holders, AReportThatComesLateTakesNothingBack) {
  Home home;
  NoteHolder(home.record, kStudio, Step(8));
  EXPECT_FALSE(NoteHolder(home.record, kStudio, Step(4)));
  EXPECT_EQ(home.Look().newest(), Step(8));
}

TEST(Holders, NodesOfOneAddressShareADisk) {
  Home home;
  home.state.nodes.Add({.name = NodeName("second")}, At("10.0.0.1"));
  NoteHolder(home.record, kStudio, Step(4));
  EXPECT_TRUE(home.Holds(NodeName("second")));
  EXPECT_FALSE(home.Holds(kMacbook));
}

TEST(Holders, WhatAnAgentSeesInItsStateFolderCounts) {
  Home home;
  NoteHolder(home.record, kStudio, Step(4));
  home.List(kMacbook, 3);
  EXPECT_FALSE(home.Holds(kMacbook));
  home.List(kMacbook, 4);
  EXPECT_TRUE(home.Holds(kMacbook));
  home.state.nodes.Edit(kMacbook)->agent.state = AgentState::kGone;
  EXPECT_FALSE(home.Holds(kMacbook));
}

// Whoever looks at files alone cannot tell that a checkpoint is damaged.
TEST(Holders, WhatARankPassedOverCountsNoMoreThoughItsAgentListsIt) {
  Home home;
  NoteHolder(home.record, kStudio, Step(500));
  NoteHolder(home.record, kMacbook, Step(500));
  home.List(kMacbook, 500);
  EXPECT_EQ(home.Find(kMacbook, 400), Step(500));
  EXPECT_FALSE(home.Holds(kMacbook));
  EXPECT_EQ(home.Find(kMacbook, 400), std::nullopt) << "told again";
  EXPECT_FALSE(home.Holds(kMacbook));
  NoteHolder(home.record, kStudio, Step(600));
  EXPECT_FALSE(home.Holds(kMacbook));
  home.List(kMacbook, 600);
  EXPECT_TRUE(home.Holds(kMacbook)) << "its own word was lost";
}

TEST(Holders, WhatIsBroughtToANodeThatHadNoneCounts) {
  Home home;
  NoteHolder(home.record, kStudio, Step(500));
  NoteHolder(home.record, kMacbook, Step(400));
  home.List(kMacbook, 400);
  EXPECT_EQ(home.Find(kMacbook, 400), std::nullopt);
  home.List(kMacbook, 500);
  EXPECT_TRUE(home.Holds(kMacbook));
}

TEST(Holders, WithADiskThatAllReachAnyNodeWillDo) {
  Home home;
  home.record.spec.mutable_checkpoint()->set_shared(true);
  NoteHolder(home.record, kStudio, Step(4));
  EXPECT_FALSE(home.Look().needed());
}

TEST(Holders, AStateThatEveryHolderHasLostIsGone) {
  Home home;
  home.record.checkpoint = CheckpointRecord{.step = Step(4)};
  NoteHolder(home.record, kStudio, Step(4));
  EXPECT_FALSE(home.Look().gone());
  EXPECT_EQ(home.Find(kStudio, 0), Step(4));
  EXPECT_TRUE(home.Look().gone());
  EXPECT_TRUE(home.Look().needed());
  ForgetNewest(home.record, /*in_memory=*/false);
  EXPECT_FALSE(home.Look().needed());
}

// A job of an older espalierd, which kept no holders.
TEST(Holders, ACheckpointOfWhichNoHolderIsKnownHoldsNobodyUp) {
  Home home;
  home.record.checkpoint = CheckpointRecord{.step = Step(4)};
  EXPECT_FALSE(home.Look().needed());
}

TEST(Memory, CountsBeforeAnOlderCheckpoint) {
  Home home;
  NoteHolder(home.record, kMacbook, Step(4));
  home.Remember(kStudio, 9);
  EXPECT_EQ(home.Look().newest(), Step(9));
  EXPECT_TRUE(home.Look().needed());
  EXPECT_TRUE(home.Holds(kStudio));
  EXPECT_FALSE(home.Holds(kMacbook));
  EXPECT_EQ(home.Look().Describe(), "step 9 in the memory of studio");
}

TEST(Memory, IsNeededWhereEveryNodeReachesTheCheckpointsToo) {
  Home home;
  home.record.spec.mutable_checkpoint()->set_shared(true);
  NoteHolder(home.record, kStudio, Step(4));
  home.Remember(kMacbook, 9);
  EXPECT_TRUE(home.Look().needed());
  EXPECT_FALSE(home.Holds(kStudio));
}

TEST(Memory, OfAJobThatLostItsCheckpointsIsNotGone) {
  Home home;
  home.record.checkpoint = CheckpointRecord{.step = Step(4)};
  NoteHolder(home.record, kStudio, Step(4));
  home.Find(kStudio, 0);
  home.Remember(kStudio, 9);
  EXPECT_FALSE(home.Look().gone());
}

// The sums of a step may have come to one rank and not to another when both were killed.
TEST(Memory, AStepLessIsAsGood) {
  Home home;
  home.Remember(kStudio, 9);
  home.Remember(kMacbook, 8);
  EXPECT_TRUE(home.Holds(kStudio));
  EXPECT_TRUE(home.Holds(kMacbook));
  EXPECT_EQ(home.Look().LeastOn({kMacbook}), Step(8));
  EXPECT_EQ(home.Look().LeastOn({kMacbook, kStudio}), Step(9));
  home.Remember(kMacbook, 7);
  EXPECT_FALSE(home.Holds(kMacbook));
}

// Agents look every two seconds, at different times; at the end all had done the same steps.
TEST(Memory, OfWhichWasHeardWhileItsGenerationRanIsAsNewAsTheOthers) {
  Home home;
  home.record.generation = Generation(3);
  home.Remember(kStudio, 9);
  home.Remember(kMacbook, 4);
  EXPECT_FALSE(home.Holds(kMacbook));
  home.state.nodes.Edit(kMacbook)->agent.report->mutable_warm(0)->set_taken_by(3);
  EXPECT_TRUE(home.Holds(kMacbook));
  EXPECT_EQ(home.Look().LeastOn({kMacbook}), Step(4));
}

TEST(Memory, OfAProcessOfAnEarlierGenerationThatNobodyCouldEndIsOutOfReach) {
  Home home;
  home.record.generation = Generation(3);
  home.Remember(kStudio, 9);
  v1::WarmState& warm = *home.state.nodes.Edit(kStudio)->agent.report->mutable_warm(0);
  warm.set_taken_by(3);
  EXPECT_TRUE(home.Holds(kStudio)) << "its own, which was there when the agent looked last";
  warm.set_taken_by(2);
  EXPECT_FALSE(home.Look().needed());
}

TEST(Memory, IsBelievedWhereTheJobHasBeenAndUpToItsLastStep) {
  Home home;
  home.Remember(kStudio, 101);
  EXPECT_FALSE(home.Look().needed());
  home.Remember(kStudio, 9);
  EXPECT_TRUE(home.Look().needed());
  home.record.holders.clear();
  EXPECT_FALSE(home.Look().needed());
}

// WatchAgents forgets it when the agent was away for long.
TEST(Memory, CountsWhileItsAgentMayBeStartedAgain) {
  Home home;
  NoteHolder(home.record, kMacbook, Step(4));
  home.Remember(kStudio, 9);
  AgentSession& agent = home.state.nodes.Edit(kStudio)->agent;
  agent.state = AgentState::kGone;
  EXPECT_EQ(home.Look().newest(), Step(9));
  agent.report->clear_warm();
  EXPECT_EQ(home.Look().newest(), Step(4));
  EXPECT_TRUE(home.Holds(kMacbook));
}

struct RunningHome : Home {
  RunningHome() {
    record.state = JobState::kRunning;
    record.processes = Processes::kRunning;
    record.nodes = {kStudio};
    Take();
  }
  void Take() {
    state.jobs[record.id].record = record;
    NoteHeldNodes(state, record);
  }
};

TEST(Memory, IsSpareOnceItsJobIsOver) {
  RunningHome home;
  home.Remember(kStudio, 9);
  EXPECT_TRUE(home.Spare(kStudio).empty());
  home.record.state = JobState::kFailed;
  home.record.processes = Processes::kNone;
  home.Take();
  EXPECT_EQ(home.Spare(kStudio), std::vector<int64_t>{9});
  home.state.jobs.clear();
  EXPECT_EQ(home.Spare(kStudio), std::vector<int64_t>{9}) << "forgotten, so it was over";
}

TEST(Memory, IsSpareWhereTheJobHasNoProcessesAndADiskHoldsAsMuch) {
  RunningHome home;
  home.Remember(kStudio, 9);
  home.Remember(kMacbook, 9);
  EXPECT_TRUE(home.Spare(kMacbook).empty()) << "all that is left when the studio burns";
  NoteHolder(home.record, kStudio, Step(9));
  home.Take();
  EXPECT_EQ(home.Spare(kMacbook), std::vector<int64_t>{9});
  EXPECT_TRUE(home.Spare(kStudio).empty()) << "in use";
}

// Who stays has nothing but memory when who leaves has written the only copy.
TEST(Memory, AsNewAsADiskIsAsGoodAndKeptWhileThatIsAway) {
  RunningHome home;
  home.Remember(kStudio, 9);
  home.Remember(kMacbook, 9);
  NoteHolder(home.record, kStudio, Step(9));
  home.state.nodes.Edit(kStudio)->record.drained = "";
  home.Take();
  EXPECT_TRUE(home.Holds(kMacbook));
  EXPECT_EQ(home.Look().Names(), (std::vector<NodeName>{kStudio, kMacbook}));
  EXPECT_EQ(home.Look().LeastOn({kMacbook}), Step(9));
  EXPECT_TRUE(home.Spare(kMacbook).empty());
  home.state.nodes.Edit(kStudio)->record.drained.reset();
  EXPECT_EQ(home.Spare(kMacbook), std::vector<int64_t>{9});
  TakeSpareMemory(home.state, *home.state.nodes.Edit(kMacbook));
  EXPECT_FALSE(home.Holds(kMacbook)) << "it may be gone at any moment";
  home.Remember(kMacbook, 9);
  NoteHolder(home.record, kStudio, Step(12));
  EXPECT_FALSE(home.Holds(kMacbook));
}

TEST(Memory, GivenUpLeavesTheCheckpoints) {
  Home home;
  NoteHolder(home.record, kMacbook, Step(4));
  home.Remember(kStudio, 9);
  ForgetNewest(home.record, /*in_memory=*/true);
  EXPECT_EQ(home.Look().newest(), Step(4));
  EXPECT_TRUE(home.Look().Has(kMacbook));
  EXPECT_FALSE(home.Look().Has(kStudio));
}

TEST(Memory, OfAnotherVersionIsNotLeftToTheNextGeneration) {
  RunningHome home;
  home.Remember(kStudio, 9);
  AgentSession& agent = home.state.nodes.Edit(kStudio)->agent;
  agent.report->mutable_warm(0)->set_taken_by(home.record.generation.value());
  home.state.versions.set_espalier("2");
  Job& job = home.state.jobs[home.record.id];
  job.record = home.record;
  job.world.ranks.resize(1);
  const auto kept = [&](const std::string& version) {
    job.world.ranks[0].version = version;
    return KeptInMemory(home.state, home.record, {kStudio});
  };
  EXPECT_TRUE(kept("2"));
  EXPECT_FALSE(kept("1"));
}

TEST(Holders, ACheckpointThatIsGivenUpLeavesTheOlderOnes) {
  Home home;
  NoteHolder(home.record, kStudio, Step(9));
  NoteHolder(home.record, kMacbook, Step(4));
  ForgetNewest(home.record, /*in_memory=*/false);
  EXPECT_EQ(home.Look().newest(), Step(4));
  EXPECT_TRUE(home.Look().Has(kMacbook));
  EXPECT_FALSE(home.Look().Has(kStudio));
}

TEST(Memory, OfAHistoryThatWasGivenUpIsSpare) {
  RunningHome home;
  home.Remember(kStudio, 9);
  ForgetNewest(home.record, /*in_memory=*/true);
  home.Take();
  EXPECT_EQ(home.Spare(kStudio), std::vector<int64_t>{9});
  EXPECT_EQ(home.Look().newest(), Step(0));
  EXPECT_FALSE(home.Look().needed());
}

}  // namespace
}  // namespace espalier
