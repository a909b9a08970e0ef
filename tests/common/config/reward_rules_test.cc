// What jobs that learn from rewards or preferences need beside what all do, and what they get
// without saying so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/config/job_file.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] =
    "name: job\nmodel: {preset: nano}\ndata: {path: data, sequence_length: 256}\n"
    "train: {task: grpo, global_batch: 16, verifier: {kind: arithmetic}}\n";

struct RewardCase {
  const char* name;
  std::vector<std::string> settings;
  std::string error;  // empty: fine
};

class RewardJob : public ::testing::TestWithParam<RewardCase> {};
INSTANTIATE_TEST_SUITE_P(
    Cases, RewardJob,
    ::testing::Values(
        RewardCase{"AsItIs", {}, ""},
        RewardCase{"OfAnotherTask",
                   {"train.task=pretrain"},
                   "train.verifier is of train.task grpo and rft"},
        RewardCase{"OneSample", {"train.rollout.samples=1"}, "samples is 2 or more"},
        RewardCase{"SamplesThatDoNotDivide",
                   {"train.rollout.samples=3"},
                   "train.rollout.samples is 3 and train.global_batch is 16"},
        RewardCase{"LongerThanItsRoom",
                   {"train.rollout.max_new_tokens=300"},
                   "train.rollout.max_new_tokens is 300"},
        RewardCase{"ReferenceWithoutAdapters", {"train.grpo.kl=0.1"}, "give train.lora"},
        RewardCase{"ReferenceWithAdapters",
                   {"model={from: model}", "train.lora={rank: 4}", "train.grpo.kl=0.1"},
                   ""},
        RewardCase{"ReferenceThatIsNotTheBeginning",
                   {"model={from: model}", "train.lora={from: adapter}", "train.grpo.kl=0.1"},
                   "merge them (espalier export --merge)"},
        RewardCase{"EpochsOfSeveralUpdates",
                   {"train.epochs=2", "train.grpo.updates_per_rollout=2"},
                   "give train.steps instead"},
        RewardCase{"RowsOfRftLongerThanTheirRoom",
                   {"train.task=rft", "train.rollout.max_new_tokens=300"},
                   "train.rollout.max_new_tokens is 300"},
        RewardCase{"PreferencesOfATaskWithoutThem", {"train.dpo={beta: 0.2}"}, "train.dpo is of"},
        RewardCase{"GamesOfSums", {"evaluate.games=5"}, "there are games of verifier wordle"},
        RewardCase{"GamesOfWordle", {"train.verifier.kind=wordle", "evaluate.games=5"}, ""},
        RewardCase{"ProgramWithoutACommand",
                   {"train.verifier.kind=external"},
                   "train.verifier.command is the program of kind external"},
        RewardCase{"RewardsOfWordleForSums",
                   {"train.verifier.rewards=shaped"},
                   "train.verifier.rewards is \"shaped\", and it is of kind wordle; "
                   "train.verifier.kind is 'arithmetic'"},
        RewardCase{"WordsForAProgram",
                   {"train.verifier={kind: external, command: judge, words: words.txt}"},
                   "train.verifier.words is "},
        RewardCase{"FolderWithoutAProgram",
                   {"train.verifier.folder=judges"},
                   "judges\", and it is of kind external; train.verifier.kind is 'arithmetic'"},
        RewardCase{"LimitWithoutAProgram",
                   {"train.verifier={kind: wordle, time_limit_seconds: 5}"},
                   "train.verifier.time_limit_seconds is 5, and it is of kind external"},
        RewardCase{"DefaultsOfOtherKinds",
                   {"train.verifier.rewards=predibase", "train.verifier.processes=1"},
                   ""}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(RewardJob, RunsOrIsRefusedWithTheReason) {
  const auto spec =
      LoadJobText({.yaml = kJob, .folder = "/jobs", .overrides = GetParam().settings});
  if (GetParam().error.empty()) {
    EXPECT_TRUE(spec.ok()) << spec.status();
  } else {
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(GetParam().error));
  }
}

constexpr char kPreferences[] =
    "name: job\nmodel: {from: model}\ndata: {path: data}\ntrain: {task: dpo, lora: {rank: 4}}\n";

TEST(PreferenceJobs, MeasureAgainstTheModelThatTheyBeginWith) {
  const auto load = [](const std::vector<std::string>& settings) {
    return LoadJobText({.yaml = kPreferences, .folder = "/jobs", .overrides = settings});
  };
  const auto spec = load({});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train().dpo().beta(), 0.1) << "of the section that was left out";
  EXPECT_EQ(spec->train().dpo().label_smoothing(), 0);
  EXPECT_TRUE(ValidateJobSpec(*spec).ok());
  EXPECT_THAT(std::string(load({"train.lora={from: adapter}"}).status().message()),
              HasSubstr("merge them (espalier export --merge)"));
  const auto whole = LoadJobText({.yaml = "name: job\nmodel: {preset: nano}\n"
                                          "data: {path: data}\ntrain: {task: dpo}\n",
                                  .folder = "/jobs"});
  EXPECT_THAT(std::string(whole.status().message()), HasSubstr("give train.lora"));
  EXPECT_THAT(std::string(load({"data.packing=true"}).status().message()),
              HasSubstr("data.packing has examples share rows"));
}

TEST(RewardJobs, CompletionsAreJudgedBySomething) {
  const auto spec = LoadJobText({.yaml = "name: job\nmodel: {preset: nano}\ndata: {path: data}\n"
                                         "train: {task: grpo, global_batch: 16}\n",
                                 .folder = "/jobs"});
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("train.verifier is missing"));
}

TEST(RewardJobs, SectionsThatAreLeftOutHaveTheirDefaults) {
  const auto spec = LoadJobText({.yaml = kJob, .folder = "/jobs"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train().rollout().samples(), 8);
  EXPECT_EQ(spec->train().rollout().temperature(), 1);
  EXPECT_EQ(spec->train().grpo().aggregation(), "dapo");
  EXPECT_EQ(spec->train().grpo().clip_low(), 0.2);
  EXPECT_EQ(spec->train().grpo().updates_per_rollout(), 1);
  EXPECT_TRUE(ValidateJobSpec(*spec).ok());
}

}  // namespace
}  // namespace espalier
