// Every mistake in a job file names its line, what was seen and what is allowed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Case {
  const char* name;
  std::string yaml;  // after the three lines of kHead
  std::string error;
};

constexpr char kHead[] = "name: job\nmodel: {preset: nano}\ndata: {path: data}\n";

std::string ErrorOf(const std::string& yaml, std::vector<std::string> overrides = {}) {
  const auto spec = LoadJobText(
      {.yaml = yaml, .origin = "j.yaml", .folder = "/jobs", .overrides = std::move(overrides)});
  return spec.ok() ? "no error" : std::string(spec.status().message());
}

class BadValue : public ::testing::TestWithParam<Case> {};

TEST_P(BadValue, IsRefusedWithPlaceAndWhatIsAllowed) {
  EXPECT_THAT(ErrorOf(kHead + GetParam().yaml), HasSubstr(GetParam().error));
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Types, BadValue,
    ::testing::Values(
        Case{"TextForWhole", "train:\n  steps: many",
             "j.yaml:5: train.steps is 'many'; allowed: a whole number from 1 to 1e12 steps"},
        Case{"FractionForWhole", "train: {steps: 1.5}", "j.yaml:4: train.steps is '1.5'; allowed"},
        Case{"ScientificForWhole", "train: {steps: 1e3}", "train.steps is '1e3'"},
        Case{"OctalLooking", "train: {steps: 010}", "train.steps is '010'"},
        Case{"TooLargeForTheType", "train: {steps: 99999999999999999999}", "train.steps is '9999"},
        Case{"NegativeForUnsigned", "train: {seed: -1}",
             "train.seed is '-1'; allowed: a whole number of at least 0"},
        Case{"NotANumber", "train: {clip_norm: .nan}", "train.clip_norm is '.nan'"},
        Case{"Infinite", "train: {clip_norm: .inf}", "train.clip_norm is '.inf'"},
        Case{"Overflow", "train: {clip_norm: 1e999}", "train.clip_norm is '1e999'"},
        Case{"HexForNumber", "train: {clip_norm: 0x10}", "train.clip_norm is '0x10'"},
        Case{"QuotedNumber", "train: {clip_norm: '1'}",
             "train.clip_norm is '1'; allowed: a number from 0 to 1e6, without quotes"},
        Case{"ListForNumber", "train: {steps: [1]}", "train.steps is a list; allowed"},
        Case{"SectionForNumber", "train: {steps: {a: 1}}", "train.steps is a section; allowed"},
        Case{"NothingForNumber", "train:\n  steps:", "train.steps has no value; leave the key out"},
        Case{"SectionTwice", "model: {}", "j.yaml:4: model is given twice, first in line 2"},
        Case{"YesForTrue", "train: {optimizer: {decay_all: yes}}",
             "train.optimizer.decay_all is 'yes'; allowed: true or false"},
        Case{"ValueForSection", "train: 7",
             "train is '7'; it must hold 'key: value' lines (task,"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Ranges, BadValue,
    ::testing::Values(
        Case{"AboveMax", "train: {optimizer: {beta1: 1.5}}",
             "j.yaml:4: train.optimizer.beta1 is 1.5; allowed: a number from 0 to 0.99999"},
        Case{"BelowMin", "train: {steps: 0}", "train.steps is 0; allowed: a whole number from 1"},
        Case{"Unit", "health: {failure_timeout_seconds: 0.1}", "from 0.5 to 86400 seconds"},
        Case{"ListElement", "batch: {micro_batch: [4, 0]}", "batch.micro_batch entry 1 is 0"},
        Case{"Word", "launch: {device: gpu}",
             "launch.device is 'gpu'; allowed: one of: auto, cpu, cuda, mps"},
        Case{"NearWord", "launch: {device: cudda}", "did you mean 'cuda'?"},
        Case{"EnumWord", "train: {schedule: {kind: cosin}}",
             "train.schedule.kind is 'cosin'; allowed: one of: constant, linear, cosine; did you "
             "mean 'cosine'?"},
        Case{"EnumUnspecified", "train: {task: unspecified}", "train.task is 'unspecified'"},
        Case{"EmptyPath", "checkpoint: {directory: ''}", "checkpoint.directory is ''"},
        Case{"ControlCharacter", "checkpoint: {directory: \"a\\nb\"}", "a\\x0ab"}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Keys, BadValue,
    ::testing::Values(
        Case{"Unknown", "train:\n  stepz: 1",
             "j.yaml:5: unknown key 'train.stepz'; did you mean 'train.steps'? Allowed here: task"},
        Case{"InAnotherSection", "train: {learning_rate: 1}",
             "unknown key 'train.learning_rate'; did you mean 'train.schedule.learning_rate'?"},
        Case{"Merge", "train: {<<: 1}", "unknown key 'train.<<'"},
        Case{"Twice", "train: {steps: 1}\ntrain: {steps: 2}",
             "j.yaml:5: train is given twice, first in line 4; keep one"},
        Case{"ListAsKey", "[a, b]: 1", "a key must be a plain word"}),
    NameOf);

TEST(JobErrors, RequiredKeysThatAreMissingAreNamedWithTheirSection) {
  const std::string error = ErrorOf("model: {preset: nano}\ndata:\n  sequence_length: 8\n");
  EXPECT_THAT(error, HasSubstr("name is missing; give text of 1 to 64 characters"));
  EXPECT_THAT(error, HasSubstr("j.yaml:3: data.path is missing; give a path"));
  EXPECT_THAT(ErrorOf("name: a"), HasSubstr("data.path is missing"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kHead, "model: {rope_scaling: {}}")), HasSubstr("twice"));
}

TEST(JobErrors, AnOptionalSectionThatIsGivenMustBeComplete) {
  EXPECT_THAT(ErrorOf("name: a\ndata: {path: d}\nmodel: {preset: nano, rope_scaling: {factor: 2}}"),
              HasSubstr("model.rope_scaling.original_max_position_embeddings is missing"));
}

TEST(JobErrors, OverridesAreCheckedLikeTheFile) {
  EXPECT_THAT(ErrorOf(kHead, {"train.stepz=5"}), HasSubstr("--set train.stepz=5: unknown key"));
  EXPECT_THAT(ErrorOf(kHead, {"train.steps=x"}), HasSubstr("--set train.steps=x: train.steps is"));
  EXPECT_THAT(ErrorOf(kHead, {"train.steps"}), HasSubstr("no '=' in it; write KEY=VALUE"));
  EXPECT_THAT(ErrorOf(kHead, {"train.steps="}), HasSubstr("has no value"));
  EXPECT_THAT(ErrorOf(kHead, {"train..steps=1"}), HasSubstr("an empty key"));
  EXPECT_THAT(ErrorOf(kHead, {"name.a=1"}), HasSubstr("'a' stands below 'job'"));
  EXPECT_THAT(ErrorOf(kHead, {"train.steps=[1"}), HasSubstr("not valid YAML"));
}

TEST(JobErrors, TheListOfProblemsIsBounded) {
  std::string yaml = kHead;
  for (int i = 0; i < 50; ++i) absl::StrAppend(&yaml, "wrong", i, ": 1\n");
  EXPECT_THAT(ErrorOf(yaml), AllOf(HasSubstr("wrong19"), Not(HasSubstr("wrong20")),
                                   HasSubstr("and 30 more problems")));
}

TEST(JobErrors, AMissingFileIsNamed) {
  const absl::Status status = LoadJobFile("/no/such/job.yaml").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/job.yaml"));
}

}  // namespace
}  // namespace espalier
