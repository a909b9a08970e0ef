// What jobs leave in a node's memory: what is told of it, and what is given back.
#include "coordinator/agent/warm_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/shared_segment.h"
#include "tests/coordinator/scratch_folder.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class WarmMemory : public ::testing::Test {
 protected:
  ~WarmMemory() override {
    Drop("nano-1", 1'000, 0);
    Drop("nano-2", 1'000, 0);
  }
  std::unique_ptr<SharedSegment> Open(const std::string& job, int64_t mark, int worker = 0,
                                      int64_t history = 0, const std::string& node = "studio") {
    auto segment = SharedSegment::Open(warm(), {.job = job,
                                                .node = node,
                                                .worker = worker,
                                                .history = history,
                                                .generation = 3,
                                                .layout = "one",
                                                .bytes = 1'000});
    EXPECT_TRUE(segment.ok()) << segment.status();
    (*segment)->set_mark(mark);
    return *std::move(segment);
  }
  // Job and step of each.
  std::vector<std::string> Reported(const v1::NodeReport& before = {}) const {
    v1::NodeReport report;
    AddWarm(warm(), "studio", before, report);
    std::vector<std::string> said;
    for (const v1::WarmState& one : report.warm()) {
      said.push_back(one.job_id() + " " + std::to_string(one.step()));
    }
    std::sort(said.begin(), said.end());
    return said;
  }
  void Drop(const std::string& job, int64_t step, int64_t history = 0) const {
    v1::DropWarm command;
    command.set_job_id(job);
    command.set_history(history);
    command.set_step(step);
    DropWarm(warm(), "studio", command);
  }
  std::string warm() const { return folder_.path("warm"); }

  ScratchFolder folder_;
};

TEST_F(WarmMemory, WithoutAFolderThereIsNone) { EXPECT_THAT(Reported(), IsEmpty()); }

TEST_F(WarmMemory, IsReportedInUseAndLeftBehind) {
  Open("nano-1", 12);
  const auto in_use = Open("nano-2", 7);
  EXPECT_THAT(Reported(), ElementsAre("nano-1 12", "nano-2 7"));
}

TEST_F(WarmMemory, SaysWhichGenerationHasIt) {
  const auto generation = [&] {
    v1::NodeReport report;
    AddWarm(warm(), "studio", {}, report);
    return report.warm(0).taken_by();
  };
  {
    const auto in_use = Open("nano-1", 12);
    EXPECT_EQ(generation(), 3);
  }
  EXPECT_EQ(generation(), 0);
}

// systemd-logind does so when the user whose agent it is logs out.
TEST_F(WarmMemory, WhatSomebodyRemovesUnderAWorkerIsToldOnce) {
  const auto in_use = Open("nano-1", 12);
  v1::NodeReport before, after, later;
  AddWarm(warm(), "studio", {}, before);
  ASSERT_EQ(before.warm(0).step(), 12);
  ASSERT_EQ(shm_unlink(("/" + ListSegments(warm(), "studio").value().at(0).name).c_str()), 0);
  const auto warnings = [&](const v1::NodeReport& last, v1::NodeReport& report) {
    testing::internal::CaptureStderr();
    AddWarm(warm(), "studio", last, report);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warnings(before, after),
              AllOf(HasSubstr("the memory of job nano-1"), HasSubstr("loginctl enable-linger")));
  EXPECT_EQ(after.warm(0).step(), 0) << "nothing that could be gone on from";
  EXPECT_EQ(warnings(after, later), "");
}

TEST_F(WarmMemory, OfOtherNodesThatShareTheFolderIsTheirs) {
  const auto theirs = Open("nano-1", 12, 0, 0, "macbook");
  EXPECT_THAT(Reported(), IsEmpty());
  Drop("nano-1", 12);
  theirs->Remove();
}

TEST_F(WarmMemory, IsGivenBackUpToTheStepThatWasNamed) {
  Open("nano-1", 12);
  Open("nano-1", 9, /*worker=*/1);
  Open("nano-2", 7);
  Drop("nano-1", 11);
  EXPECT_THAT(Reported(), ElementsAre("nano-1 12", "nano-2 7"));
  Drop("nano-1", 12);
  EXPECT_THAT(Reported(), ElementsAre("nano-2 7"));
}

TEST_F(WarmMemory, OfAnEarlierHistoryIsOlderWhateverItsStep) {
  Open("nano-1", 500, 0, /*history=*/0);
  Open("nano-2", 3, 0, /*history=*/2);
  Drop("nano-1", 0, /*history=*/1);
  Drop("nano-2", 500, /*history=*/1);
  EXPECT_THAT(Reported(), ElementsAre("nano-2 3"));
  Drop("nano-2", 500, /*history=*/2);
}

TEST_F(WarmMemory, ThatAProcessHasIsLeftToIt) {
  const auto in_use = Open("nano-1", 12);
  Drop("nano-1", 500);
  EXPECT_THAT(Reported(), ElementsAre("nano-1 12"));
}

// As after the machine was started anew.
TEST_F(WarmMemory, WhatAnEarlierLifeOfTheMachineHeldIsStruckOffTheRegister) {
  const std::string name = Open("nano-1", 12)->name();
  shm_unlink(("/" + name).c_str());
  EXPECT_THAT(Reported(), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(warm() + "/" + name));
}

TEST_F(WarmMemory, OfAFolderThatCannotBeReadIsWhatWasSeenBefore) {
  v1::NodeReport before;
  before.add_warm()->set_job_id("nano-1");
  folder_.Write("warm", "no folder");
  EXPECT_THAT(Reported(before), ElementsAre("nano-1 0"));
}

}  // namespace
}  // namespace espalier
