#include "common/config/epochs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/config/job_file.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<v1::JobSpec> Load(const std::vector<std::string>& overrides) {
  constexpr char kJob[] = "name: small\nmodel: {preset: nano}\ndata: {path: data}\n";
  return LoadJobText({.yaml = kJob, .origin = "a", .folder = "/jobs", .overrides = overrides});
}

// Three epochs over 890 pairs in batches of 8, as Hugging Face's trainer counts.
TEST(Epochs, EndWithWhatIsLeftOfThem) {
  absl::StatusOr<v1::JobSpec> spec =
      Load({"train.epochs=3", "train.global_batch=8", "train.schedule.warmup_ratio=0.03"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(NeedsSamples(*spec));
  EXPECT_EQ(StepsPerEpoch(890, 8), 112);
  ASSERT_TRUE(ResolveEpochs(890, *spec).ok());
  EXPECT_EQ(spec->train().steps(), 336);
  EXPECT_EQ(spec->train().schedule().warmup_steps(), 11);
  EXPECT_FALSE(NeedsSamples(*spec));
  EXPECT_TRUE(ValidateJobSpec(*spec).ok()) << ValidateJobSpec(*spec);
  EXPECT_TRUE(ResolveEpochs(890, *spec).ok()) << "once more, on another machine";
}

TEST(Epochs, MayEndWithinOne) {
  absl::StatusOr<v1::JobSpec> spec = Load({"train.epochs=0.5", "train.global_batch=8"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_TRUE(ResolveEpochs(890, *spec).ok());
  EXPECT_EQ(spec->train().steps(), 56);
}

TEST(Epochs, ThatNobodyCountedCannotRun) {
  absl::StatusOr<v1::JobSpec> spec = Load({"train.epochs=3"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->train().has_steps());
  FillJobDefaults(*spec);
  EXPECT_THAT(std::string(ValidateJobSpec(*spec).message()), HasSubstr("train.steps is missing"));
}

TEST(Epochs, OfOtherDataAreRefused) {
  absl::StatusOr<v1::JobSpec> spec = Load({"train.epochs=3", "train.global_batch=8"});
  ASSERT_TRUE(ResolveEpochs(890, *spec).ok());
  const absl::Status other = ResolveEpochs(900, *spec);
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()), HasSubstr("train.steps is 336"));
  EXPECT_THAT(std::string(other.message()), HasSubstr("are 339 steps"));
}

TEST(Epochs, StandBesideTheSameSteps) {
  absl::StatusOr<v1::JobSpec> spec =
      Load({"train.epochs=2", "train.steps=500", "train.global_batch=8"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(ResolveEpochs(890, *spec).ok());
  EXPECT_TRUE(ResolveEpochs(2000, *spec).ok());
}

TEST(Epochs, SurviveTheJobsText) {
  absl::StatusOr<v1::JobSpec> spec = Load({"train.epochs=3", "train.schedule.warmup_ratio=0.1"});
  ASSERT_TRUE(ResolveEpochs(890, *spec).ok());
  const std::string yaml = JobSpecToYaml(*spec);
  const auto again = LoadJobText({.yaml = yaml, .origin = "b", .folder = "/jobs"});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->SerializeAsString(), spec->SerializeAsString());
}

TEST(WarmupRatio, IsOfTheSteps) {
  const auto spec = Load({"train.steps=201", "train.schedule.warmup_ratio=0.1"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train().schedule().warmup_steps(), 21);
}

TEST(WarmupRatio, BesideAnotherNumberOfStepsIsRefused) {
  const auto spec =
      Load({"train.steps=200", "train.schedule.warmup_ratio=0.1", "train.schedule.warmup_steps=5"});
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("leave one of them out"));
}

}  // namespace
}  // namespace espalier
