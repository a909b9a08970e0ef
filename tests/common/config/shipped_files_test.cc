// Every file in configs/ loads, and opens with when to use it.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file_system.h"
#include "common/config/cluster_file.h"
#include "common/config/job_file.h"

namespace espalier {
namespace {

const std::string kConfigs = ESPALIER_SOURCE_DIR "/configs/";

std::vector<std::string> FilesIn(const std::string& folder) {
  const auto names = PosixFileSystem().List(kConfigs + folder);
  EXPECT_TRUE(names.ok()) << names.status();
  return names.value_or(std::vector<std::string>{});
}

void ExpectOpensWithItsUse(const std::string& path) {
  const auto text = PosixFileSystem().Read(path, 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->rfind("# Use this ", 0), 0u) << path << " must open with when to use it";
}

TEST(ShippedFiles, EveryJobLoads) {
  const std::vector<std::string> names = FilesIn("jobs");
  EXPECT_GE(names.size(), 4u);
  for (const std::string& name : names) {
    const std::string path = kConfigs + "jobs/" + name;
    const auto spec = LoadJobFile(path);
    EXPECT_TRUE(spec.ok()) << path << "\n" << spec.status();
    ExpectOpensWithItsUse(path);
  }
}

TEST(ShippedFiles, EveryClusterLoads) {
  const std::vector<std::string> names = FilesIn("clusters");
  EXPECT_GE(names.size(), 3u);
  for (const std::string& name : names) {
    const std::string path = kConfigs + "clusters/" + name;
    const auto spec = LoadClusterFile(path);
    EXPECT_TRUE(spec.ok()) << path << "\n" << spec.status();
    ExpectOpensWithItsUse(path);
  }
}

TEST(ShippedFiles, EveryNodeProfileLoads) {
  const std::vector<std::string> names = FilesIn("nodes");
  EXPECT_GE(names.size(), 19u);
  for (const std::string& name : names) {
    const std::string stem = std::filesystem::path(name).stem().string();
    const auto profile = LoadNodeProfile(stem, {kConfigs + "nodes"});
    ASSERT_TRUE(profile.ok()) << name << "\n" << profile.status();
    EXPECT_GT(profile->relative_speed(), 0) << name;
    ExpectOpensWithItsUse(kConfigs + "nodes/" + name);
  }
}

TEST(ShippedFiles, TheQuickstartIsTheRunTheReadmePromises) {
  const auto spec = LoadJobFile(kConfigs + "jobs/quickstart.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model().preset(), "nano");
  EXPECT_EQ(spec->data().sequence_length(), 128);
  EXPECT_EQ(spec->train().global_batch(), 16);
  EXPECT_EQ(spec->parallel().min_nodes(), 2);
  EXPECT_EQ(spec->parallel().links(), 4);
}

// Steps would be of one number of samples.
TEST(ShippedFiles, AdaptersAreTrainedForEpochsOfWhateverDataThereIs) {
  const auto spec = LoadJobFile(kConfigs + "jobs/lora-llama-3.2-3b.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->train().epochs(), 3);
  EXPECT_FALSE(spec->train().has_steps());
  EXPECT_EQ(spec->train().schedule().warmup_ratio(), 0.03);
}

// The second one of the original on conversations, but for its leak (mlp_t).
TEST(ShippedFiles, TheRecursiveModelInFullPrecisionIsThatOfTheOriginal) {
  const auto spec = LoadJobFile(kConfigs + "jobs/trm-chat-fp32.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const v1::ModelSpec& model = spec->model();
  EXPECT_EQ(model.hidden_size(), 768);
  EXPECT_EQ(model.num_hidden_layers(), 2);
  EXPECT_EQ(model.num_attention_heads(), 8);
  EXPECT_EQ(model.recursion().expansion(), 2);
  EXPECT_EQ(model.recursion().h_cycles(), 3);
  EXPECT_EQ(model.recursion().l_cycles(), 4);
  EXPECT_EQ(model.recursion().halt_max_steps(), 4);
  EXPECT_EQ(model.recursion().halt_exploration(), 0.1);
  EXPECT_EQ(model.recursion().probabilities(), "softmax");
  EXPECT_TRUE(model.recursion().causal());
  EXPECT_FALSE(model.recursion().mix_positions());
  const v1::TrainSpec& train = spec->train();
  EXPECT_EQ(train.precision(), v1::PRECISION_FP32);
  EXPECT_EQ(train.global_batch(), 8 * 4);
  EXPECT_EQ(train.epochs(), 100);
  EXPECT_EQ(train.clip_norm(), 1.0);
  EXPECT_EQ(train.ema(), 0);
  EXPECT_EQ(train.schedule().learning_rate(), 1e-4);
  EXPECT_EQ(train.schedule().warmup_steps(), 100);
  EXPECT_EQ(train.schedule().final_ratio(), 0.1);
  EXPECT_EQ(train.optimizer().kind(), v1::OPTIMIZER_KIND_ADAMW);
  EXPECT_EQ(train.optimizer().beta2(), 0.95);
  EXPECT_EQ(train.optimizer().weight_decay(), 0.1);
}

// The original decays all that it trains, tables and biases too.
TEST(ShippedFiles, RecursiveModelsOfTheSizesOfTheOriginalsDecayAllAsTheseDo) {
  for (const char* name : {"trm-puzzle", "trm-chat", "trm-chat-fp32"}) {
    const auto spec = LoadJobFile(absl::StrCat(kConfigs, "jobs/", name, ".yaml"));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_TRUE(spec->train().optimizer().decay_all()) << name;
  }
}

// Of the original: a checkpoint every 50 steps, the last three stay; evaluations every 20.
TEST(ShippedFiles, WordleOnALargeModelIsKeptAndMeasuredAsInTheOriginal) {
  const auto spec = LoadJobFile(kConfigs + "jobs/grpo-wordle-qwen2.5-3b.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->checkpoint().every_steps(), 50);
  EXPECT_EQ(spec->checkpoint().keep(), 3);
  EXPECT_EQ(spec->evaluate().every_steps(), 20);
}

// The comment that a job's file begins with.
std::string HeadOf(const std::string& path) {
  const auto text = PosixFileSystem().Read(path, 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? text->substr(0, text->find("\nname:")) : "";
}

// Steps of the jobs that such a comment names, and of its own.
std::set<int64_t> StepsNamedIn(const std::string& head, const std::string& own) {
  std::set<std::string> paths = {own};
  static const auto& job = *new std::regex("configs/jobs/[A-Za-z0-9.-]+\\.yaml");
  for (std::sregex_iterator it(head.begin(), head.end(), job), end; it != end; ++it) {
    paths.insert(absl::StrCat(ESPALIER_SOURCE_DIR "/", it->str()));
  }
  std::set<int64_t> steps;
  for (const std::string& path : paths) {
    const auto spec = LoadJobFile(path);
    EXPECT_TRUE(spec.ok()) << own << " names " << path << "\n" << spec.status();
    if (spec.ok() && spec->train().has_steps()) steps.insert(spec->train().steps());
  }
  return steps;
}

// "model.from=start/step-00000400" is the last checkpoint of the job that makes it.
TEST(ShippedFiles, ACheckpointThatAHeadNamesIsTheLastOfAJobThatItNames) {
  static const auto& checkpoint = *new std::regex("step-([0-9]{8})");
  int checked = 0;
  for (const std::string& name : FilesIn("jobs")) {
    const std::string path = kConfigs + "jobs/" + name, head = HeadOf(path);
    const std::set<int64_t> steps = StepsNamedIn(head, path);
    if (steps.empty()) continue;  // epochs: as many as there are data
    for (std::sregex_iterator it(head.begin(), head.end(), checkpoint), end; it != end; ++it) {
      EXPECT_EQ(steps.count(std::stoll((*it)[1])), 1u) << name << " names " << it->str();
      ++checked;
    }
  }
  EXPECT_GE(checked, 4);
}

// The twin on any machine and the job of a real model learn in the same way.
TEST(ShippedFiles, PreferencesAreLearntByAdaptersOnTheModelAsItWas) {
  for (const char* name : {"dpo-nano", "dpo-smollm2-360m"}) {
    const auto spec = LoadJobFile(absl::StrCat(kConfigs, "jobs/", name, ".yaml"));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->train().task(), v1::TASK_DPO);
    EXPECT_EQ(spec->train().dpo().beta(), 0.1);
    EXPECT_EQ(spec->train().lora().rank(), 16);
    EXPECT_GT(spec->evaluate().every_steps(), 0);
    EXPECT_EQ(spec->checkpoint().keep_best(), 1);
  }
}

// "the Studio goes on alone", and "when the MacBook is back, the run takes it in".
TEST(ShippedFiles, TheRunOnTwoMacsGoesOnOnOneAsTheReadmePromises) {
  const auto readme = PosixFileSystem().Read(ESPALIER_SOURCE_DIR "/README.md", 1 << 20);
  ASSERT_TRUE(readme.ok()) << readme.status();
  const std::string path = "configs/jobs/1b-two-macs.yaml";
  ASSERT_NE(readme->find("espalier submit " + path), std::string::npos);
  const auto spec = LoadJobFile(ESPALIER_SOURCE_DIR "/" + path);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->parallel().min_nodes(), 1);
  EXPECT_EQ(spec->parallel().max_nodes(), 2);
  EXPECT_EQ(spec->health().failure_timeout_seconds(), 120) << "130 s, says the README";
  EXPECT_NE(readme->find("130 s for the job of step 7"), std::string::npos);
}

}  // namespace
}  // namespace espalier
