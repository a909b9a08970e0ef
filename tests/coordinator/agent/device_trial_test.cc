// What an agent finds out about its machine's device, with a worker of the test.
#include "coordinator/agent/device_trial.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/coordinator/scratch_folder.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {
namespace {

class DeviceTrialTest : public testing::Test {
 protected:
  // A worker that is given: self-test --result FILE.
  DeviceTrialRunner Runner(const std::string& script) {
    return DeviceTrialRunner({.worker = folder_.WriteScript("worker", "#!/bin/sh\n" + script),
                              .folder = folder_.path("self-test")});
  }
  static bool Tells(const DeviceTrialRunner& runner) {
    v1::NodeReport report;
    runner.AddTo(report);
    return report.has_device();
  }
  static v1::DeviceTrial Told(const DeviceTrialRunner& runner) {
    v1::NodeReport report;
    runner.AddTo(report);
    return report.device();
  }
  static bool AwaitNews(DeviceTrialRunner& runner, absl::Duration now = kNow) {
    return WaitUntil([&] { return runner.Poll(/*idle=*/true, now); });
  }

  static constexpr absl::Duration kNow = absl::Seconds(100);
  const ScratchFolder folder_;
};

constexpr char kFails[] =
    "test \"$1 $2\" = 'self-test --result' || exit 9\n"
    "echo '{\"device\":\"mps\",\"precisions\":[{\"precision\":\"bf16\",\"failed\":\"attention\"}]}'"
    " > \"$3\"\nexit 2\n";

TEST_F(DeviceTrialTest, WhatTheWorkerWritesIsTold) {
  DeviceTrialRunner runner = Runner(kFails);
  EXPECT_FALSE(Tells(runner));
  ASSERT_TRUE(AwaitNews(runner));
  EXPECT_EQ(Told(runner).device(), "mps");
  EXPECT_EQ(Told(runner).precisions(0).failed(), "attention");
  EXPECT_FALSE(runner.Poll(true, kNow + absl::Hours(10))) << "once is enough";
}

TEST_F(DeviceTrialTest, NothingIsTriedWhileSomethingElseRuns) {
  DeviceTrialRunner runner = Runner("touch began\nexec sleep 1000");
  EXPECT_FALSE(runner.Poll(/*idle=*/false, kNow));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("self-test")));
  EXPECT_FALSE(runner.Poll(/*idle=*/true, kNow));
  EXPECT_TRUE(WaitUntil([&] { return std::filesystem::exists(folder_.path("self-test/began")); }));
  EXPECT_FALSE(runner.Poll(/*idle=*/false, kNow)) << "it ends, and nothing is known";
  EXPECT_FALSE(Tells(runner));
}

TEST_F(DeviceTrialTest, WhatEndsWithoutAResultIsToldByItsLastWordsAndTriedAgainLater) {
  DeviceTrialRunner runner = Runner("echo loading; echo no memory >&2; exit 1");
  ASSERT_TRUE(AwaitNews(runner));
  EXPECT_EQ(Told(runner).error(), "no memory");
  EXPECT_FALSE(runner.Poll(true, kNow + DeviceTrialRunner::kAgain - absl::Seconds(1)));
  folder_.WriteScript("worker", std::string("#!/bin/sh\n") + kFails);
  ASSERT_TRUE(AwaitNews(runner, kNow + DeviceTrialRunner::kAgain));
  EXPECT_EQ(Told(runner).error(), "");
  EXPECT_EQ(Told(runner).device(), "mps");
}

TEST_F(DeviceTrialTest, WhatTakesTooLongIsEnded) {
  DeviceTrialRunner runner = Runner("exec sleep 1000");
  EXPECT_FALSE(runner.Poll(true, kNow));
  ASSERT_TRUE(AwaitNews(runner, kNow + DeviceTrialRunner::kLongest + absl::Seconds(1)));
  EXPECT_NE(Told(runner).error().find("took longer than 3m"), std::string::npos);
}

TEST_F(DeviceTrialTest, AWorkerThatCannotBeStartedIsTold) {
  DeviceTrialRunner runner({.worker = "/no/worker", .folder = folder_.path("self-test")});
  ASSERT_TRUE(AwaitNews(runner));
  EXPECT_NE(Told(runner).error(), "");
}

}  // namespace
}  // namespace espalier
