// Jobs of configs/jobs that a person starts from, run for some steps as they are; and how a worker
// alone ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/tiny_job.h"

namespace espalier {
namespace {

using testing::HasSubstr;

Ended RunAll(const TestFolder& folder, std::vector<std::string> command) {
  return RunToEnd(std::move(command), folder / "run.log");
}

// By the programs of a person: espalier beside the worker.
TEST(ShippedJobs, TheOneOfAVerifierOfOnesOwnIsValidAndRuns) {
  const TestFolder folder;
  const std::string job = ESPALIER_SOURCE_DIR "/configs/jobs/grpo-external-nano.yaml";
  std::string rows;
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&rows, R"({"prompt": "word )", i, R"(: ", "record": {"wanted": ["w", "a"]}})",
                    "\n");
  }
  const std::string prompts = folder.Write("prompts.jsonl", rows);
  const Ended prepared = RunAll(folder, {WorkerProgram(), "data", "prepare", "--output",
                                         folder / "data", "--format", "prompts", prompts});
  ASSERT_EQ(prepared.code, 0) << prepared.output;
  std::vector<std::string> settings;
  for (const std::string& setting :
       {absl::StrCat("data.path=", folder / "data"), std::string("train.steps=2"),
        std::string("train.schedule.warmup_steps=1"), std::string("train.global_batch=16"),
        std::string("evaluate.max_prompts=2"), std::string("launch.device=cpu"),
        std::string("model={hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, "
                    "num_attention_heads: 2}"),
        absl::StrCat("checkpoint.directory=", folder / "checkpoints")}) {
    settings.insert(settings.end(), {"--set", setting});
  }
  const std::string espalier =
      (std::filesystem::path(WorkerProgram()).parent_path() / "espalier").string();
  std::vector<std::string> validate = {espalier, "validate", job};
  validate.insert(validate.end(), settings.begin(), settings.end());
  const Ended valid = RunAll(folder, validate);
  EXPECT_EQ(valid.code, 0) << valid.output;
  std::vector<std::string> train = {WorkerProgram(), "--standalone", job};
  train.insert(train.end(), settings.begin(), settings.end());
  const Ended trained = RunAll(folder, train);
  EXPECT_EQ(trained.code, 0) << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("completed after step 2"));
}

// What would fail again for the job's own reason exits otherwise than what lies there wrongly.
TEST(Standalone, ExitsByKindOfReason) {
  TinyJob job;
  const auto run = [&](std::vector<std::string> settings) {
    std::vector<std::string> arguments = job.Arguments("run");
    arguments.insert(arguments.begin(), WorkerProgram());
    for (const std::string& one : settings) arguments.insert(arguments.end(), {"--set", one});
    return RunAll(job.folder(), arguments);
  };
  const Ended missing = run({"data.path=none"});
  EXPECT_EQ(missing.code, 2) << missing.output;
  const Ended large = run({"batch.memory_limit_bytes=1000"});
  EXPECT_EQ(large.code, 1) << large.output;
  std::filesystem::resize_file(job.folder() / "data/train-00000.tokens", 100);
  const Ended damaged = run({});
  EXPECT_EQ(damaged.code, 2) << damaged.output;
}

}  // namespace
}  // namespace espalier
