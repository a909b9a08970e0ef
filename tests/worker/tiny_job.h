// TinyJob: prepared data and a job file for a model that trains hundreds of steps a second, in a
// folder of its own. Used by memory_test.cc, resume_test.cc and verbs_test.cc. One thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/shared_segment.h"
#include "tests/worker/child.h"
#include "tests/worker/support/test_folder.h"
#include "worker/data/prepare.h"

namespace espalier {

class TinyJob {
 public:
  static constexpr int64_t kBatch = 16;
  static constexpr int64_t kStepsPerEpoch = 40;
  static constexpr int64_t kLength = 32;
  static constexpr int64_t kSamples = kBatch * kStepsPerEpoch;

  // `warm`: its workers keep what is trained in shared memory. With `validation` the data has such
  // a split, and the samples are fewer.
  explicit TinyJob(bool warm = false, bool validation = false) : warm_(warm) {
    SplitMix64 random(7);
    std::string text;
    while (text.size() < kSamples * kLength) {
      text += std::string(1 + random.Below(5), static_cast<char>('a' + random.Below(26))) + " ";
    }
    text.resize(kSamples * kLength);
    PrepareOptions options;
    options.inputs = {folder_.Write("text.txt", text)};
    options.output = folder_ / "data";
    options.split_by = validation ? SplitBy::kAuto : SplitBy::kNone;
    const auto prepared = PrepareData(PosixFileSystem(), *MakeByteTokenizer(), options);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    folder_.Write("job.yaml",
                  "name: tiny\n"
                  "model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, "
                  "num_attention_heads: 4}\n"
                  "data: {path: data, sequence_length: 32}\n"
                  "train: {steps: 60, global_batch: 16, schedule: {learning_rate: 3e-3}}\n"
                  "batch: {micro_batch: 4}\n"
                  "checkpoint: {every_steps: 7, keep: 3}\n"
                  "launch: {threads: 1, device: cpu}\n");
  }

  // Gives back the shared memory of workers that were killed.
  ~TinyJob() {
    std::error_code gone;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path(), gone)) {
      const std::filesystem::path file = entry.path();
      if (file.parent_path().filename() != ".warm") continue;
      RemoveSegment(file.parent_path(), file.filename());
    }
  }

  const TestFolder& folder() const { return folder_; }
  // Arguments of a worker that trains it, with checkpoints and sample log below `name`.
  std::vector<std::string> Arguments(const std::string& name) const {
    std::vector<std::string> arguments = {
        "--standalone", folder_ / "job.yaml",
        "--set",        absl::StrCat("checkpoint.directory=", folder_ / name, "/checkpoints"),
        "--set",        absl::StrCat("launch.sample_log=", SampleLog(name))};
    if (warm_) arguments.push_back("--warm");
    for (const std::string& setting : settings_) {
      arguments.push_back("--set");
      arguments.push_back(setting);
    }
    return arguments;
  }
  // "evaluate.every_steps=5", for all runs from now on.
  void Set(std::string setting) { settings_.push_back(std::move(setting)); }
  std::string SampleLog(const std::string& name) const { return folder_ / name + "/samples"; }
  std::string Checkpoint(const std::string& name, const std::string& step) const {
    return folder_ / name + "/checkpoints/step-" + step;
  }

  // Samples of every step as the newest run that got there used them, by step.
  std::map<int64_t, std::vector<int64_t>> SamplesUsed(const std::string& name) const {
    std::map<int64_t, std::pair<std::string, std::vector<int64_t>>> newest;
    if (!std::filesystem::exists(SampleLog(name))) return {};
    for (const std::string& file : Names(SampleLog(name))) {
      const std::string run = file.substr(0, file.find("-rank"));
      std::stringstream lines(ReadText(SampleLog(name) + "/" + file));
      for (std::string line; std::getline(lines, line);) {
        const nlohmann::json entry = nlohmann::json::parse(line, nullptr, false);
        if (entry.is_discarded()) continue;  // cut by a kill: that step was not committed
        auto& [held_run, ids] = newest[entry["step"]];
        if (held_run < run) ids.clear();
        if (held_run > run) continue;
        held_run = run;
        for (const int64_t id : entry["samples"]) ids.push_back(id);
      }
    }
    std::map<int64_t, std::vector<int64_t>> used;
    for (auto& [step, entry] : newest) used[step] = std::move(entry.second);
    return used;
  }
  // The first and the last step that each run has logged, in the order of the runs.
  std::vector<std::pair<int64_t, int64_t>> StepsOfRuns(const std::string& name) const {
    std::map<std::string, std::pair<int64_t, int64_t>> runs;
    for (const std::string& file : Names(SampleLog(name))) {
      std::stringstream lines(ReadText(SampleLog(name) + "/" + file));
      for (std::string line; std::getline(lines, line);) {
        const nlohmann::json entry = nlohmann::json::parse(line, nullptr, false);
        if (entry.is_discarded()) continue;
        const int64_t step = entry["step"];
        const auto run = runs.insert({file.substr(0, file.find("-rank")), {step, step}}).first;
        run->second.first = std::min(run->second.first, step);
        run->second.second = std::max(run->second.second, step);
      }
    }
    std::vector<std::pair<int64_t, int64_t>> steps;
    for (const auto& [run, range] : runs) steps.push_back(range);
    return steps;
  }
  bool HasReached(const std::string& name, int64_t step) const {
    const auto used = SamplesUsed(name);
    return !used.empty() && used.rbegin()->first >= step;
  }

 private:
  TestFolder folder_;
  const bool warm_;
  std::vector<std::string> settings_;
};

}  // namespace espalier
