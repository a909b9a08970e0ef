// What an agent reports of its node, from real folders.
#include "coordinator/agent/node_facts.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/shared_segment.h"
#include "tests/coordinator/scratch_folder.h"
#include "tests/coordinator/wait_until.h"

namespace espalier {
namespace {

// A pipe that nobody writes to is opened by whoever reads it, and never answers.
class HangingFile {
 public:
  explicit HangingFile(std::string path) : path_(std::move(path)) {
    std::filesystem::remove(path_);
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
  }
  // Whether a reader waited. It reads nothing, and goes on.
  bool Answer() {
    const int fd = open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    return fd >= 0 && close(fd) == 0;
  }

 private:
  const std::string path_;
};

// Of this process; 0 where the system does not tell it in this way.
size_t Threads() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return error ? 0 : static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

class Facts : public ::testing::Test {
 protected:
  Facts() {
    for (const char* folder : {"state", "good", "bad", "jobs/job-1/checkpoints"}) {
      std::filesystem::create_directories(folder_.path(folder));
    }
    folder_.Write("good/manifest.json", "{}");
    folder_.Write("bad/manifest.json", "{}");
    facts_.emplace(NodeFactsOptions{.state_dir = folder_.path("state"),
                                    .mpirun = "/no/mpirun",
                                    .worker = "/no/worker",
                                    .job_folders = {folder_.path("jobs")},
                                    .data_folders = {folder_.path("bad"), folder_.path("good")},
                                    .node = "studio"},
                   RealClock());
  }
  // No look that was left behind outlives the test: it would meet the end of the process.
  ~Facts() override {
    facts_.reset();
    if (!hanging_) return;
    EXPECT_TRUE(WaitUntil([this] {
      hanging_->Answer();
      return Threads() <= threads_;
    }));
  }
  void Hang() { hanging_.emplace(folder_.path("bad/manifest.json")); }
  // Anew, with no folder of jobs given.
  void WithoutJobFolders() {
    facts_.emplace(
        NodeFactsOptions{
            .state_dir = folder_.path("state"), .mpirun = "/no/mpirun", .worker = "/no/worker"},
        RealClock());
  }
  // What espalierd says of folders; empty: none.
  void Note(const std::string& jobs, const std::string& warm) {
    v1::AgentWelcome told;
    if (!jobs.empty()) told.set_job_folder(folder_.path(jobs));
    if (!warm.empty()) told.set_warm_folder(folder_.path(warm));
    facts_->NoteFolders(told);
  }
  bool Reports(int states, int folders) {
    return WaitUntil([&] {
      const v1::NodeReport report = facts_->Report();
      return report.held_size() == states && report.data_size() == folders;
    });
  }
  void Publish(const std::string& job, int step) {
    const std::string folder = absl::StrCat("jobs/", job, "/checkpoints/step-", step);
    std::filesystem::create_directories(folder_.path(folder));
    folder_.Write(folder + "/manifest.json", "{}");
  }

  const size_t threads_ = Threads();
  ScratchFolder folder_;
  std::optional<HangingFile> hanging_;
  std::optional<NodeFacts> facts_;
};

TEST_F(Facts, HoldCheckpointsAndDataOfEveryFolder) {
  Publish("job-1", 7);
  ASSERT_TRUE(Reports(1, 2));
  const v1::NodeReport report = facts_->Report();
  EXPECT_EQ(report.held(0).job_id(), "job-1");
  EXPECT_EQ(report.held(0).step(), 7);
  EXPECT_EQ(report.data(0).manifest_sha256(), report.data(1).manifest_sha256());
  EXPECT_GT(report.unix_seconds(), 0);
}

TEST_F(Facts, HoldWhatLiesWhereEspalierdKeepsJobsUnlessFoldersWereGiven) {
  Publish("job-1", 7);
  Publish("job-1", 8);
  Note("elsewhere", "");
  EXPECT_TRUE(Reports(2, 2));
  Note("", "");
  WithoutJobFolders();
  EXPECT_TRUE(Reports(0, 0));
  Note("jobs", "");
  EXPECT_TRUE(Reports(2, 0));
  Note("elsewhere", "");
  EXPECT_TRUE(Reports(0, 0)) << "another espalierd";
}

TEST_F(Facts, TheFoldersThatEspalierdNamedAreKnownToTheNextAgentFromItsFirstReportOn) {
  WithoutJobFolders();
  Publish("job-1", 7);
  Note("jobs", "warm");
  std::filesystem::create_symlink(folder_.path("warm"), folder_.path("warm"));
  WithoutJobFolders();
  EXPECT_TRUE(facts_->Report().warm_unknown()) << "it knows where, and cannot look";
  EXPECT_TRUE(Reports(1, 0));
}

TEST_F(Facts, HoldWhatJobsHaveLeftInMemory) {
  Note("jobs", "warm");
  const auto segment = SharedSegment::Open(
      folder_.path("warm"),
      {.job = "job-1", .node = "studio", .history = 2, .layout = "one", .bytes = 100'000});
  ASSERT_TRUE(segment.ok()) << segment.status();
  (*segment)->set_mark(12);
  EXPECT_TRUE(WaitUntil([&] { return facts_->Report().warm_size() == 1; }));
  const v1::WarmState warm = facts_->Report().warm(0);
  EXPECT_EQ(warm.job_id(), "job-1");
  EXPECT_EQ(warm.history(), 2);
  EXPECT_EQ(warm.step(), 12);
  EXPECT_EQ(warm.bytes(), 100'000);
  (*segment)->Remove();
  EXPECT_TRUE(WaitUntil([&] { return facts_->Report().warm_size() == 0; }));
}

TEST_F(Facts, OfTheMachineAreAsTheConditionFileSays) {
  facts_.emplace(NodeFactsOptions{.state_dir = folder_.path("state"),
                                  .mpirun = "/no/mpirun",
                                  .worker = "/no/worker",
                                  .condition_file = folder_.path("condition")},
                 RealClock());
  const v1::NodeCondition system = facts_->Report().condition();
  folder_.Write("condition", R"({"power": "NODE_POWER_BATTERY", "batteryPercent": 12})");
  v1::NodeCondition condition = facts_->Report().condition();
  EXPECT_EQ(condition.power(), v1::NODE_POWER_BATTERY);
  EXPECT_EQ(condition.battery_percent(), 12);
  EXPECT_EQ(condition.memory(), system.memory()) << "of what it does not say";
  folder_.Write("condition", "{");
  EXPECT_EQ(facts_->Report().condition().battery_percent(), 12) << "somebody writes it just now";
  std::filesystem::remove(folder_.path("condition"));
  EXPECT_EQ(facts_->Report().condition().power(), system.power());
}

TEST_F(Facts, TellTheTimeZoneOfTheNodeAlsoWhenItTravels) {
  const char* const before = std::getenv("TZ");
  const std::string kept = before == nullptr ? "" : before;
  const auto offset_in = [&](const char* zone) {
    setenv("TZ", zone, 1);
    return facts_->Report().utc_offset_seconds();
  };
  EXPECT_EQ(offset_in("IST-5:30"), 5 * 3600 + 1800);
  EXPECT_EQ(offset_in("EST5"), -5 * 3600);
  before == nullptr ? unsetenv("TZ") : setenv("TZ", kept.c_str(), 1);
}

TEST_F(Facts, SayThatMemoryIsNotKnownWhileItsFolderCannotBeRead) {
  std::filesystem::create_symlink(folder_.path("warm"), folder_.path("warm"));
  Note("jobs", "warm");
  EXPECT_TRUE(facts_->Report().warm_unknown());
  std::filesystem::remove(folder_.path("warm"));
  std::filesystem::create_directory(folder_.path("warm"));
  EXPECT_TRUE(WaitUntil([&] { return !facts_->Report().warm_unknown(); }));
  std::filesystem::rename(folder_.path("warm"), folder_.path("moved"));
  std::filesystem::create_symlink(folder_.path("warm"), folder_.path("warm"));
  facts_->Report();
  EXPECT_FALSE(facts_->Report().warm_unknown()) << "what was seen last is told";
}

TEST_F(Facts, GiveMemoryBackAndWaitForNoFolder) {
  Note("jobs", "warm");
  const auto open = [&] {
    return SharedSegment::Open(
        folder_.path("warm"),
        {.job = "job-1", .node = "studio", .history = 2, .layout = "one", .bytes = 1'000});
  };
  {
    const auto segment = open();
    ASSERT_TRUE(segment.ok()) << segment.status();
    (*segment)->set_mark(12);
  }
  EXPECT_TRUE(WaitUntil([&] { return facts_->Report().warm_size() == 1; }));
  v1::DropWarm command;
  command.set_job_id("job-1");
  command.set_history(2);
  command.set_step(12);
  facts_->Drop(command);
  EXPECT_TRUE(WaitUntil([&] { return facts_->Report().warm_size() == 0; }));

  hanging_.emplace(folder_.path("warm/espalier-hangs"));
  for (int i = 0; i < 3; ++i) facts_->Drop(command);
  facts_->Report();
  EXPECT_TRUE(WaitUntil([&] { return hanging_->Answer(); })) << "it hung, in another thread";
}

TEST_F(Facts, OfAFolderThatDoesNotAnswerAreThoseSeenLastAndOthersStayFresh) {
  ASSERT_TRUE(Reports(0, 2));
  Hang();
  const double first = facts_->Report().unix_seconds();
  Publish("job-1", 7);
  EXPECT_TRUE(Reports(1, 2));
  EXPECT_GT(facts_->Report().unix_seconds(), first);
}

TEST_F(Facts, OfAJobWhoseCheckpointsCannotBeReadAreThoseSeenLastAndOthersStayFresh) {
  Publish("job-1", 7);
  ASSERT_TRUE(Reports(1, 2));
  const std::string checkpoints = folder_.path("jobs/job-1/checkpoints");
  std::filesystem::rename(checkpoints, folder_.path("moved"));
  std::filesystem::create_symlink(checkpoints, checkpoints);
  Publish("job-2", 9);
  EXPECT_TRUE(Reports(2, 2)) << "a link to itself is an error";
  std::filesystem::remove(checkpoints);
  EXPECT_TRUE(Reports(1, 2)) << "what is not there holds nothing";
}

TEST_F(Facts, OfJobFoldersThatCannotBeReadAreThoseSeenLast) {
  Publish("job-1", 7);
  ASSERT_TRUE(Reports(1, 2));
  std::filesystem::rename(folder_.path("jobs"), folder_.path("moved"));
  std::filesystem::create_symlink(folder_.path("jobs"), folder_.path("jobs"));
  facts_->Report();
  EXPECT_EQ(facts_->Report().held_size(), 1);
}

TEST_F(Facts, AStrayFileAmongTheJobsHoldsNothing) {
  folder_.Write("jobs/stray", "");
  Publish("job-1", 7);
  EXPECT_TRUE(Reports(1, 2));
}

TEST_F(Facts, ComeAgainWhenTheFolderAnswers) {
  Hang();
  ASSERT_TRUE(Reports(0, 1)) << "from the start";
  ASSERT_TRUE(WaitUntil([&] { return hanging_->Answer(); }));
  std::filesystem::remove(folder_.path("bad/manifest.json"));
  folder_.Write("bad/manifest.json", "{}");
  EXPECT_TRUE(Reports(0, 2));
}

TEST_F(Facts, OfAFolderThatDoesNotAnswerHoldNobodyUpAtTheEnd) {
  Hang();
  facts_->Report();
  facts_.reset();
  EXPECT_TRUE(WaitUntil([&] { return hanging_->Answer(); })) << "the look still hung";
}

ProcessorTimes Times(double busy, const std::map<int64_t, absl::Duration>& own) {
  return {.busy = absl::Seconds(busy), .processors = 4, .of_program = own};
}

TEST(OtherLoad, IsWhatProcessorsDidBesideTheWorkers) {
  OtherLoad load;
  EXPECT_FALSE(load.Measure(Times(100, {{1, absl::Seconds(40)}}), absl::Seconds(10)).has_value());
  EXPECT_DOUBLE_EQ(*load.Measure(Times(107, {{1, absl::Seconds(46)}}), absl::Seconds(12)), 1.0 / 8);
}

TEST(OtherLoad, CountsAWorkerThatHasBegunAndForgetsOneThatHasEnded) {
  OtherLoad load;
  load.Measure(Times(100, {{1, absl::Seconds(40)}}), absl::Seconds(0));
  EXPECT_DOUBLE_EQ(*load.Measure(Times(104, {{2, absl::Seconds(2)}}), absl::Seconds(2)), 0.25);
  EXPECT_DOUBLE_EQ(*load.Measure(Times(106, {{2, absl::Seconds(0.5)}}), absl::Seconds(4)), 1.5 / 8)
      << "another process of that number";
}

TEST(OtherLoad, StaysBetweenNothingAndAll) {
  OtherLoad load;
  load.Measure(Times(100, {}), absl::Seconds(0));
  EXPECT_EQ(*load.Measure(Times(101, {{1, absl::Seconds(3)}}), absl::Seconds(2)), 0);
  EXPECT_EQ(*load.Measure(Times(150, {}), absl::Seconds(4)), 1);
}

TEST(OtherLoad, TimesThatFollowAtOnceSayWhatWasSaidLast) {
  OtherLoad load;
  load.Measure(Times(100, {}), absl::Seconds(0));
  load.Measure(Times(104, {}), absl::Seconds(2));
  EXPECT_DOUBLE_EQ(*load.Measure(Times(104.1, {}), absl::Seconds(2.1)), 0.5);
}

}  // namespace
}  // namespace espalier
