// What an agent finds out about a job before it comes here, with a worker of the test.
#include "coordinator/agent/rehearsal.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/platform/process.h"
#include "tests/coordinator/scratch_folder.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {
namespace {

v1::RehearseJob RequestOf(const std::string& job) {
  v1::RehearseJob request;
  request.set_job_id(job);
  request.mutable_spec()->set_name("nano");
  return request;
}

class RehearsalTest : public testing::Test {
 protected:
  // What it is given is its first two arguments; every start adds a line to `starts`.
  RehearsalRunner Runner(const std::string& script) {
    const std::string begin = absl::StrCat("#!/bin/sh\necho $$ >> ", folder_.path("starts"), "\n");
    return RehearsalRunner({.worker = folder_.WriteScript("worker", begin + script),
                            .folder = folder_.path("rehearsal")});
  }
  static v1::Rehearsal Told(const RehearsalRunner& runner) {
    v1::NodeReport report;
    runner.AddTo(report);
    return report.rehearsal();
  }
  static void AwaitEnd(RehearsalRunner& runner) {
    EXPECT_TRUE(WaitUntil([&] {
      runner.Poll(kNow);
      return Told(runner).state() != v1::REHEARSAL_STATE_RUNNING;
    }));
  }
  std::vector<int64_t> Starts() const {
    std::ifstream file(folder_.path("starts"));
    return {std::istream_iterator<int64_t>(file), {}};
  }

  static constexpr absl::Duration kNow = absl::Seconds(100);
  const ScratchFolder folder_;
};

TEST_F(RehearsalTest, SaysNothingBeforeItIsAsked) {
  RehearsalRunner runner = Runner("");
  EXPECT_FALSE(runner.Poll(kNow));
  v1::NodeReport report;
  runner.AddTo(report);
  EXPECT_FALSE(report.has_rehearsal());
}

TEST_F(RehearsalTest, TheWorkerGetsTheJobAndItsSuccessIsReadiness) {
  RehearsalRunner runner = Runner("test \"$1\" = rehearse && grep -q nano-1 \"$2\"");
  runner.Ask(RequestOf("nano-1"), kNow);
  EXPECT_EQ(Told(runner).state(), v1::REHEARSAL_STATE_RUNNING);
  AwaitEnd(runner);
  EXPECT_EQ(Told(runner).state(), v1::REHEARSAL_STATE_READY) << Told(runner).text();
  EXPECT_EQ(Told(runner).job_id(), "nano-1");
  EXPECT_FALSE(runner.Poll(kNow + RehearsalRunner::kLasts)) << "whether or not it is asked for";
  runner.Ask(RequestOf("nano-1"), kNow + RehearsalRunner::kLasts);
  EXPECT_EQ(Told(runner).state(), v1::REHEARSAL_STATE_READY);
  EXPECT_EQ(Starts().size(), 1u);
  EXPECT_TRUE(runner.Poll(kNow + RehearsalRunner::kLasts + absl::Seconds(1)));
  EXPECT_EQ(Told(runner).job_id(), "") << "the data may have changed since";
}

TEST_F(RehearsalTest, AFailureIsToldInTheWorkersLastWordsAndTriedAgainLater) {
  RehearsalRunner runner =
      Runner("echo hashing; echo '2026-11-24T08:00:00Z error /data is not there' >&2; exit 2");
  runner.Ask(RequestOf("nano-1"), kNow);
  AwaitEnd(runner);
  EXPECT_EQ(Told(runner).state(), v1::REHEARSAL_STATE_FAILED);
  EXPECT_EQ(Told(runner).text(), "/data is not there");
  runner.Ask(RequestOf("nano-1"), kNow + RehearsalRunner::kAgain / 2);
  EXPECT_FALSE(runner.Poll(kNow + RehearsalRunner::kAgain));
  EXPECT_EQ(Told(runner).state(), v1::REHEARSAL_STATE_FAILED);
  EXPECT_TRUE(runner.Poll(kNow + RehearsalRunner::kAgain + absl::Seconds(1)));
  EXPECT_EQ(Told(runner).job_id(), "");
  runner.Ask(RequestOf("nano-1"), kNow);
  EXPECT_EQ(Told(runner).state(), v1::REHEARSAL_STATE_RUNNING);
}

TEST_F(RehearsalTest, AWorkerThatIsKilledOrNotThereHasFailed) {
  RehearsalRunner killed = Runner("kill -9 $$");
  killed.Ask(RequestOf("nano-1"), kNow);
  AwaitEnd(killed);
  EXPECT_EQ(Told(killed).state(), v1::REHEARSAL_STATE_FAILED);
  EXPECT_EQ(Told(killed).text(), "espalier-worker ended without a word");
  RehearsalRunner missing({.worker = folder_.path("none"), .folder = folder_.path("rehearsal")});
  missing.Ask(RequestOf("nano-1"), kNow);
  AwaitEnd(missing);
  EXPECT_EQ(Told(missing).state(), v1::REHEARSAL_STATE_FAILED);
  EXPECT_NE(Told(missing).text(), "");
}

TEST_F(RehearsalTest, WhatItDoesIsToldMeanwhile) {
  RehearsalRunner runner = Runner("echo 'hashing the data: 1.2 of 3.4 GB'; exec sleep 1000");
  runner.Ask(RequestOf("nano-1"), kNow);
  EXPECT_TRUE(WaitUntil([&] {
    runner.Poll(kNow);
    return Told(runner).text() == "hashing the data: 1.2 of 3.4 GB";
  }));
}

TEST_F(RehearsalTest, WhatRunsAndNobodyAsksForAnyMoreIsEnded) {
  RehearsalRunner runner = Runner("exec sleep 1000");
  runner.Ask(RequestOf("nano-1"), kNow);
  ASSERT_TRUE(WaitUntil([&] { return Starts().size() == 1; }));
  const auto process = IdentifyProcess(Starts()[0]);
  ASSERT_TRUE(process.ok());
  EXPECT_FALSE(runner.Poll(kNow + RehearsalRunner::kForget));
  EXPECT_TRUE(runner.Poll(kNow + RehearsalRunner::kForget + absl::Seconds(1)));
  EXPECT_EQ(Told(runner).job_id(), "");
  EXPECT_TRUE(WaitUntil([&] {
    runner.Poll(kNow);
    return !IsAlive(*process);
  }));
}

// It holds the memory of a model, and the data.
TEST_F(RehearsalTest, WhatAnEarlierAgentLeftRunningIsEnded) {
  RehearsalRunner earlier = Runner("exec sleep 1000");
  earlier.Ask(RequestOf("nano-1"), kNow);
  ASSERT_TRUE(WaitUntil([&] { return Starts().size() == 1; }));
  const auto process = IdentifyProcess(Starts()[0]);
  ASSERT_TRUE(process.ok());
  EXPECT_TRUE(IsAlive(*process));
  const RehearsalRunner next = Runner("exit 0");
  EXPECT_TRUE(WaitUntil([&] { return !IsAlive(*process); }));
}

TEST_F(RehearsalTest, AnotherRequestForTheSameJobTakesItsPlace) {
  RehearsalRunner runner = Runner("exec sleep 1000");
  v1::RehearseJob request = RequestOf("nano-1");
  runner.Ask(request, kNow);
  ASSERT_TRUE(WaitUntil([&] { return Starts().size() == 1; }));
  request.set_data_sha256("now it is known");
  runner.Ask(request, kNow);
  EXPECT_TRUE(WaitUntil([&] { return Starts().size() == 2; }));
}

TEST_F(RehearsalTest, ARequestNamesTheWorkerThatTheNodeHas) {
  RehearsalRunner runner = Runner("exit 3");
  v1::RehearseJob request = RequestOf("nano-1");
  request.set_worker(folder_.WriteScript("another", "#!/bin/sh\necho fine"));
  runner.Ask(request, kNow);
  AwaitEnd(runner);
  EXPECT_EQ(Told(runner).state(), v1::REHEARSAL_STATE_READY);
  EXPECT_EQ(Told(runner).text(), "fine");
}

TEST_F(RehearsalTest, OneThatHangsHasFailedAndIsEnded) {
  RehearsalRunner runner = Runner("echo 'opens the data'; exec sleep 1000");
  runner.Ask(RequestOf("nano-1"), kNow);
  ASSERT_TRUE(WaitUntil([&] {
    runner.Poll(kNow);
    return Told(runner).text() == "opens the data";
  }));
  const auto process = IdentifyProcess(Starts()[0]);
  ASSERT_TRUE(process.ok());
  runner.Ask(RequestOf("nano-1"), kNow + RehearsalRunner::kSilent);
  EXPECT_FALSE(runner.Poll(kNow + RehearsalRunner::kSilent));
  EXPECT_TRUE(runner.Poll(kNow + RehearsalRunner::kSilent + absl::Seconds(1)));
  EXPECT_EQ(Told(runner).state(), v1::REHEARSAL_STATE_FAILED);
  EXPECT_EQ(Told(runner).text(),
            "espalier-worker has said nothing new for 5m while it tried, after: opens the data");
  EXPECT_TRUE(WaitUntil([&] {
    runner.Poll(kNow);
    return !IsAlive(*process);
  }));
}

TEST_F(RehearsalTest, AnotherJobTakesItsPlace) {
  RehearsalRunner runner = Runner("exec sleep 1000");
  runner.Ask(RequestOf("nano-1"), kNow);
  ASSERT_TRUE(WaitUntil([&] { return Starts().size() == 1; }));
  const auto process = IdentifyProcess(Starts()[0]);
  ASSERT_TRUE(process.ok());
  runner.Ask(RequestOf("nano-2"), kNow);
  EXPECT_EQ(Told(runner).job_id(), "nano-2");
  EXPECT_EQ(Told(runner).state(), v1::REHEARSAL_STATE_RUNNING);
  EXPECT_TRUE(WaitUntil([&] {
    runner.Poll(kNow);
    return !IsAlive(*process);
  }));
}

}  // namespace
}  // namespace espalier
