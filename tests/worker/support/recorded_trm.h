// What the original code of tiny recursive models did in six training steps and an evaluation
// (tests/data/trm): its batches as a table of samples, and what it recorded. Used by
// tests/worker/task. One thread.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "worker/data/samples.h"

namespace espalier {

inline std::string RecordedTrmFolder(const std::string& name) {
  return std::string(ESPALIER_SOURCE_DIR) + "/tests/data/trm/" + name;
}

inline nlohmann::json RecordedTrm(const std::string& name) {
  std::ifstream file(RecordedTrmFolder(name) + "/expected.json");
  return nlohmann::json::parse(file);
}

// Sample i is row i % rows of batch i / rows. Its labels are its next tokens.
class RecordedBatches : public SampleTable {
 public:
  explicit RecordedBatches(nlohmann::json batches) : batches_(std::move(batches)) {}

  int64_t rows() const { return static_cast<int64_t>(batches_[0]["inputs"].size()); }
  int64_t size() const override { return static_cast<int64_t>(batches_.size()) * rows(); }
  int64_t sequence_length() const override {
    return static_cast<int64_t>(batches_[0]["inputs"][0].size());
  }
  int64_t Length(int64_t) const override { return sequence_length() + 1; }
  absl::StatusOr<Samples> Read(std::vector<int64_t> ids) const override {
    Samples samples;
    for (const int64_t id : ids) {
      const nlohmann::json& batch = batches_[id / rows()];
      for (const int64_t token : batch["inputs"][id % rows()]) samples.tokens.push_back(token);
      samples.tokens.push_back(0);
      for (const int64_t label : batch["labels"][id % rows()]) {
        samples.counted.push_back(label >= 0 ? 1 : 0);
      }
    }
    samples.ids = std::move(ids);
    return samples;
  }

 private:
  nlohmann::json batches_;
};

}  // namespace espalier
