// Small checkpoint contents for tests. Used by tests/worker/state. One thread.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/state/checkpoint.h"

namespace espalier {

// Where LoadTensor writes the bytes of `values`.
inline absl::Span<std::byte> Room(std::vector<float>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)};
}

// The state of a tiny model after `step` steps; values and texts follow from the step.
class TinyState {
 public:
  explicit TinyState(int64_t step) : step_(step), weight_(6), moment_(6) {
    for (size_t i = 0; i < weight_.size(); ++i) {
      weight_[i] = static_cast<float>(step) + static_cast<float>(i) / 8;
      moment_[i] = -weight_[i];
    }
  }
  CheckpointContent Content() const {
    CheckpointContent content;
    content.step = Step(step_);
    const absl::Span<const float> weight = weight_, moment = moment_;
    const auto of = [](absl::Span<const float> values) {
      return [bytes = AsBytes(values)]() -> absl::StatusOr<absl::Span<const std::byte>> {
        return bytes;
      };
    };
    content.model = {{kA, of(weight.first(4))}, {kB, of(weight.subspan(4))}};
    content.optimizer = {{kMoment, of(moment)}};
    content.config_json = R"({"model_type": "llama"})";
    content.tokenizer_json = "{}";
    content.trainer_state_json = absl::StrCat(R"({"step": )", step_, "}");
    content.validation_loss = 10.0 / static_cast<double>(step_ + 1);
    return content;
  }
  // Whether the checkpoint holds exactly this state.
  bool Equals(const Checkpoint& checkpoint) const {
    std::vector<float> a(4), b(2), moment(6);
    return checkpoint.step() == Step(step_) && LoadTensor(checkpoint.model(), kA, Room(a)).ok() &&
           LoadTensor(checkpoint.model(), kB, Room(b)).ok() &&
           LoadTensor(checkpoint.optimizer(), kMoment, Room(moment)).ok() &&
           std::equal(a.begin(), a.end(), weight_.begin()) &&
           std::equal(b.begin(), b.end(), weight_.begin() + 4) && moment == moment_ &&
           *checkpoint.Text("trainer_state.json") == absl::StrCat(R"({"step": )", step_, "}");
  }

 private:
  static inline const TensorSpec kA{"model.a.weight", TensorType::kF32, {2, 2}};
  static inline const TensorSpec kB{"model.b.bias", TensorType::kF32, {2}};
  static inline const TensorSpec kMoment{"exp_avg", TensorType::kF32, {6}};
  int64_t step_;
  std::vector<float> weight_;
  std::vector<float> moment_;
};

}  // namespace espalier
