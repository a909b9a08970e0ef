// Which ended jobs are remembered.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/advance.h"

namespace espalier {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);
constexpr absl::Duration kDay = absl::Hours(24);

// Jobs 1 to `count` that ended `apart` after each other, the newest just now.
ClusterState Ended(int count, absl::Duration apart, JobState state = JobState::kCompleted) {
  CoordinatorStarted start{.nodes = {NodeName("studio")}};
  for (int i = 1; i <= count; ++i) {
    JobRecord record;
    record.id = JobId(absl::StrCat("nano-", i));
    record.number = i;
    record.state = state;
    record.state_since = kNow - apart * (count - i);
    start.jobs.push_back(record);
  }
  ClusterState cluster;
  Advance(cluster, start, kNow);
  return cluster;
}

std::vector<std::string> Forgotten(ClusterState& state, absl::Time now) {
  std::vector<std::string> names;
  for (const Effect& effect : Advance(state, Tick{}, now)) {
    if (const auto* forget = std::get_if<ForgetJob>(&effect)) names.push_back(forget->job.text());
  }
  return names;
}

TEST(Retention, TheNewestAreKeptWhateverTheirAge) {
  const RetentionPolicy policy;
  const auto always = static_cast<int>(policy.always);
  ClusterState state = Ended(always + 1, policy.age);
  EXPECT_EQ(Forgotten(state, kNow + absl::Seconds(1)), std::vector<std::string>{"nano-1"});
  EXPECT_EQ(state.jobs.size(), policy.always);
  EXPECT_EQ(Forgotten(state, kNow + 1000 * kDay), std::vector<std::string>{});
}

TEST(Retention, OfManyTheOldestAreForgottenHoweverYoung) {
  const RetentionPolicy policy;
  ClusterState state = Ended(static_cast<int>(policy.most) + 3, absl::Seconds(1));
  EXPECT_EQ(Forgotten(state, kNow).size(), 3u);
  EXPECT_EQ(state.jobs.count(JobId("nano-3")), 0u);
  EXPECT_EQ(state.jobs.count(JobId("nano-4")), 1u);
}

TEST(Retention, WhatIsYoungEnoughIsKeptUntilItIsOld) {
  ClusterState state = Ended(60, kDay);  // the oldest is 59 days old
  EXPECT_TRUE(Forgotten(state, kNow).empty());
  EXPECT_EQ(Forgotten(state, kNow + 40 * kDay).size(), 9u);  // 99 to 91 days, but for the newest 50
}

TEST(Retention, OnlyJobsThatHaveEnded) {
  ClusterState state = Ended(1200, kDay, JobState::kPausedHard);
  EXPECT_TRUE(Forgotten(state, kNow + 1000 * kDay).empty());
}

TEST(Retention, ANewJobNeverTakesTheNumberOfAForgottenOne) {
  ClusterState state = Ended(1010, absl::Seconds(1));
  EXPECT_FALSE(Forgotten(state, kNow).empty());
  EXPECT_EQ(state.next_job, 1011);
}

TEST(Retention, ARestartDoesNotGiveTheNumberOfAForgottenJobAgain) {
  CoordinatorStarted start{.nodes = {NodeName("studio")}, .last_number = 52};
  ClusterState state;
  Advance(state, start, kNow);
  EXPECT_EQ(state.next_job, 53);
}

}  // namespace
}  // namespace espalier
