// Nodes are found by name and know who holds them.
#include <gtest/gtest.h>

#include "coordinator/core/node.h"

namespace espalier {
namespace {

NodeTable Table() {
  NodeTable nodes;
  for (const char* name : {"studio", "macbook", "mini"}) nodes.Add({.name = NodeName(name)});
  return nodes;
}

std::string HolderOf(const NodeTable& nodes, const std::string& name) {
  const JobId* holder = nodes.HolderOf(NodeName(name));
  return holder == nullptr ? "" : holder->text();
}

TEST(NodeTable, KeepsTheOrderOfTheClusterFile) {
  EXPECT_EQ(NamesOfNodes(Table()), "studio, macbook, mini");
  EXPECT_EQ(NamesOfNodes(NodeTable()), "none");
}

TEST(NodeTable, KnowsNoNameThatTheClusterFileDoesNotHave) {
  NodeTable nodes = Table();
  EXPECT_EQ(nodes.Find(NodeName("phone")), nullptr);
  EXPECT_EQ(nodes.Edit(NodeName("phone")), nullptr);
  EXPECT_EQ(nodes.Find(NodeName("mini"))->record.name, NodeName("mini"));
}

TEST(NodeTable, WhatAJobHoldsReplacesWhatItHeld) {
  NodeTable nodes = Table();
  const JobId job("nano-1");
  nodes.SetHeld(job, {NodeName("studio"), NodeName("mini")});
  nodes.SetHeld(job, {NodeName("macbook"), NodeName("mini")});
  EXPECT_EQ(HolderOf(nodes, "studio"), "");
  EXPECT_EQ(HolderOf(nodes, "macbook"), "nano-1");
  EXPECT_EQ(nodes.Find(NodeName("mini"))->holder, job);
  nodes.SetHeld(job, {});
  EXPECT_EQ(HolderOf(nodes, "mini"), "");
  EXPECT_EQ(nodes.Find(NodeName("mini"))->holder, JobId());
}

TEST(NodeTable, AJobThatLetsGoTakesNothingFromTheNextHolder) {
  NodeTable nodes = Table();
  nodes.SetHeld(JobId("nano-1"), {NodeName("studio")});
  nodes.SetHeld(JobId("nano-2"), {NodeName("studio")});
  nodes.SetHeld(JobId("nano-1"), {});
  EXPECT_EQ(HolderOf(nodes, "studio"), "nano-2");
}

TEST(NodeTable, HandStartedWorkersHoldNodesOfAnyName) {
  NodeTable nodes = Table();
  nodes.SetHeld(JobId("nano-1"), {NodeName("phone"), NodeName()});
  EXPECT_EQ(HolderOf(nodes, "phone"), "nano-1");
  EXPECT_EQ(HolderOf(nodes, ""), "");
}

TEST(NodeTable, WhatIsRemovedIsNotFoundAndTheOthersAre) {
  NodeTable nodes = Table();
  nodes.Remove(NodeName("macbook"));
  EXPECT_EQ(nodes.Find(NodeName("macbook")), nullptr);
  EXPECT_EQ(NamesOfNodes(nodes), "studio, mini");
  EXPECT_EQ(nodes.Find(NodeName("mini"))->record.name, NodeName("mini"));
  nodes.Add({.name = NodeName("macbook")});
  EXPECT_EQ(NamesOfNodes(nodes), "studio, mini, macbook");
}

TEST(NodeTable, AViewSeesByTheRevisionWhatChanged) {
  NodeTable nodes = Table();
  const Node& studio = *nodes.Find(NodeName("studio"));
  const int64_t before = studio.revision;
  nodes.SetHeld(JobId("nano-1"), {NodeName("studio")});
  const int64_t held = studio.revision;
  EXPECT_GT(held, before);
  nodes.SetHeld(JobId("nano-1"), {NodeName("studio")});
  EXPECT_EQ(studio.revision, held);
  EXPECT_EQ(nodes.Find(NodeName("mini"))->revision, 0);
}

}  // namespace
}  // namespace espalier
