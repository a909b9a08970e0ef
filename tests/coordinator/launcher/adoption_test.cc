// Generations that an earlier espalierd started, taken over by another launcher.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/coordinator/launcher/launching.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST_F(Launching, AnotherLauncherAdoptsARunningGenerationAndEndsIt) {
  auto first = Make("sleep 1000 & echo up; wait");
  const ProcessIdentity leader = Start(*first);
  ASSERT_TRUE(WaitUntil([&] { return GenerationLog() == "up\n"; }));
  first.reset();
  auto second = Make("exit 1");
  second->Adopt(kKey, leader, {});
  EXPECT_TRUE(second->Poll(RealClock().Monotonic()).empty()) << "it still runs";
  second->End(kKey);
  EXPECT_THAT(AwaitEnd(*second), HasSubstr("mpirun has ended"));
  EXPECT_EQ(SignalSession(leader, 0), 0);
}

// Runs under one launcher until it is up, then under another, which is asked to end it.
TEST_F(Launching, WhatWasSaidBeforeTheAdoptionIsNotTheReasonOfTheEnd) {
  constexpr char kLate[] = "2026-11-22T15:03:21.042Z warning [rank 0] cannot attach again yet";
  auto first =
      Make(absl::StrCat("trap 'echo ", kLate, "; exit 0' TERM; echo '[rank 1] error: early'",
                        "; echo up; while :; do sleep 0.01; done"));
  const ProcessIdentity leader = Start(*first);
  ASSERT_TRUE(WaitUntil([&] { return absl::EndsWith(GenerationLog(), "up\n"); }));
  first.reset();
  auto second = Make("exit 1");
  second->Adopt(kKey, leader, {});
  second->End(kKey);
  EXPECT_EQ(AwaitEnd(*second), "mpirun has ended");
  EXPECT_THAT(GenerationLog(), HasSubstr(kLate));
}

TEST_F(Launching, WhatIsSaidOfTheEndAfterTheAdoptionIsItsReason) {
  auto first = Make(
      "trap 'echo \"[rank 0] error: late\"; exit 1' TERM; echo early; echo up; "
      "while :; do sleep 0.01; done");
  const ProcessIdentity leader = Start(*first);
  ASSERT_TRUE(WaitUntil([&] { return absl::EndsWith(GenerationLog(), "up\n"); }));
  first.reset();
  auto second = Make("exit 1");
  second->Adopt(kKey, leader, {});
  second->End(kKey);
  EXPECT_EQ(AwaitEnd(*second), "mpirun has ended: [rank 0] error: late");
}

TEST_F(Launching, OfOneThatEndedBeforeTheAdoptionTheReasonIsWhatItSaid) {
  std::filesystem::create_directories(folder_.path("jobs/job-1/logs"));
  folder_.Write("jobs/job-1/logs/gen-0001.log", "[rank 0] error: no data\n");
  auto launcher = Make("exit 0");
  launcher->Adopt(kKey, kDead, {});
  EXPECT_EQ(AwaitEnd(*launcher), "mpirun has ended: [rank 0] error: no data");
}

TEST_F(Launching, AdoptingAGenerationThatIsGoneReportsItAndRemovesItsTemporaryFiles) {
  std::filesystem::create_directories(folder_.path("jobs/job-1/tmp/gen-0001/left"));
  auto launcher = Make("exit 0");
  launcher->Adopt(kKey, kDead, {});
  EXPECT_EQ(AwaitEnd(*launcher), "mpirun has ended");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("jobs/job-1/tmp/gen-0001")));
}

}  // namespace
}  // namespace espalier
