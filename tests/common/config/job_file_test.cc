#include "common/config/job_file.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSmall[] = R"(name: small
model:
  preset: nano
data:
  path: data
)";

absl::StatusOr<v1::JobSpec> Load(const std::string& yaml, std::vector<std::string> overrides = {}) {
  return LoadJobText(
      {.yaml = yaml, .origin = "a.yaml", .folder = "/jobs", .overrides = std::move(overrides)});
}

std::string ErrorOf(const std::string& yaml, std::vector<std::string> overrides = {}) {
  return std::string(Load(yaml, std::move(overrides)).status().message());
}

TEST(JobFile, EveryDefaultIsFilledIn) {
  const absl::StatusOr<v1::JobSpec> spec = Load(kSmall);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "small");
  EXPECT_EQ(spec->data().path(), "/jobs/data");
  EXPECT_EQ(spec->data().sequence_length(), 256);
  EXPECT_EQ(spec->train().task(), v1::TASK_PRETRAIN);
  EXPECT_EQ(spec->train().optimizer().beta2(), 0.95);
  EXPECT_EQ(spec->train().schedule().kind(), v1::SCHEDULE_KIND_COSINE);
  EXPECT_EQ(spec->batch().micro_batch_size(), 0) << "each rank finds its own";
  EXPECT_EQ(spec->batch().target_memory_fraction(), 0.85);
  EXPECT_EQ(spec->parallel().max_nodes(), 1);
  EXPECT_EQ(spec->parallel().plan(), v1::PLAN_MODE_MEASURED);
  EXPECT_EQ(spec->health().failure_timeout_seconds(), 10);
  EXPECT_EQ(spec->launch().device(), "auto");
  EXPECT_FALSE(spec->model().has_rope_scaling());
  EXPECT_TRUE(ValidateJobSpec(*spec).ok()) << ValidateJobSpec(*spec);
}

TEST(JobFile, ASectionWithNothingInItTakesItsDefaults) {
  const auto spec = Load(absl::StrCat(kSmall, "train:\n  # steps: 5\nbatch: {}\n"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train().steps(), 1000);
}

TEST(JobFile, YamlOfASpecLoadsToTheSameSpec) {
  auto spec = Load(absl::StrCat(kSmall,
                                "parallel: {min_nodes: 2, nodes: [a, 'true'], shares: [3, 1]}\n"
                                "batch: {micro_batch: [2, 4]}\n"
                                "train: {optimizer: {eps: 1.234567890123e-9}}\n"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  spec->mutable_data()->set_path("/with \"quotes\" and \\ and: # and ünicode");
  const auto again = Load(JobSpecToYaml(*spec));
  ASSERT_TRUE(again.ok()) << again.status() << JobSpecToYaml(*spec);
  EXPECT_TRUE(MessageDifferencer::Equals(*spec, *again)) << JobSpecToYaml(*spec);
}

TEST(JobFile, OverridesWinAndTakePathsFromTheCurrentFolder) {
  const auto spec = Load(kSmall, {"train.steps=100", "train.steps=7", "data.path=here",
                                  "batch.micro_batch=[4]", "model.preset=17m"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train().steps(), 7);
  EXPECT_EQ(spec->batch().micro_batch(0), 4);
  EXPECT_EQ(spec->model().preset(), "17m");
  EXPECT_THAT(spec->data().path(), AllOf(HasSubstr("/here"), Not(HasSubstr("/jobs"))));
}

TEST(JobFile, HomeIsLeftToTheNodeThatOpensThePath) {
  auto spec = Load(kSmall, {"data.path=~/text", "checkpoint.directory=/c"});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data().path(), "~/text");
  ASSERT_TRUE(ExpandJobPaths(*spec).ok());
  EXPECT_THAT(spec->data().path(), AllOf(HasSubstr("/text"), Not(HasSubstr("~"))));
  EXPECT_EQ(spec->checkpoint().directory(), "/c");
  spec->mutable_data()->set_path("~bob/text");
  EXPECT_THAT(std::string(ExpandJobPaths(*spec).message()), HasSubstr("data.path: path '~bob"));
}

TEST(JobFile, AllProblemsAreNamedAtOnce) {
  const std::string error =
      ErrorOf("name: a b\nmodel:\n  presett: nano\ntrain:\n  steps: many\ndata: {path: d}\n");
  EXPECT_THAT(error, AllOf(HasSubstr("a.yaml:3: unknown key 'model.presett'"),
                           HasSubstr("did you mean 'model.preset'?"),
                           HasSubstr("a.yaml:5: train.steps is 'many'")));
}

constexpr char kJudged[] =
    "name: j\nmodel: {preset: nano}\ndata: {path: d}\n"
    "train:\n  task: grpo\n  global_batch: 16\n  verifier:\n"
    "    kind: external\n";

TEST(JobFile, AProgramThatJudgesIsFoundAndRunsBesideTheFile) {
  struct {
    const char* yaml;
    std::vector<std::string> command;
    const char* folder;
  } const cases[] = {
      {"    command: [./judge, a/b]\n", {"/jobs/judge", "a/b"}, "/jobs"},
      {"    command: [python3, judge.py]\n    folder: in\n", {"python3", "judge.py"}, "/jobs/in"},
      {"    command: tools/judge\n", {"/jobs/tools/judge"}, "/jobs"},
      {"    command: [/srv/judge]\n    folder: ~/x\n", {"/srv/judge"}, "~/x"},
      {"    command: [~/judge]\n", {"~/judge"}, ""},
      {"    command: [/srv/judge, x]\n", {"/srv/judge", "x"}, ""}};
  for (const auto& [yaml, command, folder] : cases) {
    const auto spec = Load(absl::StrCat(kJudged, yaml));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_THAT(spec->train().verifier().command(), ElementsAreArray(command)) << yaml;
    EXPECT_EQ(spec->train().verifier().folder(), folder) << yaml;
    const auto again = Load(JobSpecToYaml(*spec));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(MessageDifferencer::Equals(*spec, *again)) << JobSpecToYaml(*spec);
  }
  const auto here = Load(kJudged, {"train.verifier.command=[./judge]"});
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_EQ(here->train().verifier().command(0), here->train().verifier().folder() + "/judge");
  EXPECT_THAT(here->train().verifier().folder(), Not(HasSubstr("/jobs")));
  v1::JobSpec home = *Load(absl::StrCat(kJudged, "    command: [~/judge]\n"));
  ASSERT_TRUE(ExpandJobPaths(home).ok());
  EXPECT_THAT(home.train().verifier().command(0), Not(HasSubstr("~")));
}

TEST(JobFile, ACommandIsAListAndNoTextForAShell) {
  EXPECT_THAT(ErrorOf(absl::StrCat(kJudged, "    command: python3 judge.py\n")),
              AllOf(HasSubstr("a.yaml:9: train.verifier.command is 'python3 judge.py'"),
                    HasSubstr("write [python3, judge.py]")));
}

}  // namespace
}  // namespace espalier
