// KeyValueCache: keys and values of the positions that a decoder has seen, of several sequences, a
// row each. The memory is taken once, and positions are written in their place: nothing that grows
// with what is kept is copied for a new one. Used by decoder.h and worker/generation. Compute
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/formats/decoder_config.h"
#include "worker/ops/cuda_ops.h"
#include "worker/ops/kept_attention.h"
#include "worker/ops/ops.h"
#include "worker/tensor/torch.h"
#include "worker/tensor/transfers.h"

namespace espalier {

class KeyValueCache {
 public:
  struct Size {
    int64_t rows = 1;
    int64_t positions = 0;  // of a row, at most
  };
  // RESOURCE_EXHAUSTED where a layer's keys would be more than one tensor may hold, with what may
  // be asked for. `element_bytes`: of one number.
  static absl::Status CheckSize(const DecoderConfig& config, const Size& size,
                                int64_t element_bytes);
  // Of keys and values together.
  static int64_t Bytes(const DecoderConfig& config, const Size& size, int64_t element_bytes);

  // `options`: the type that the decoder computes in, and its device.
  KeyValueCache(const DecoderConfig& config, const Size& size, torch::TensorOptions options);

  const Size& size() const { return size_; }
  int64_t length(int64_t row) const { return lengths_[static_cast<size_t>(row)]; }
  // Forgets what comes after the first `length` positions of a row.
  void Truncate(int64_t row, int64_t length) { lengths_[static_cast<size_t>(row)] = length; }
  // Makes a row as it was at first: zeros.
  void Clear(int64_t row);
  // The first `count` positions of `from` become all that `to` holds.
  void CopyPrefix(int64_t from, int64_t to, int64_t count);
  // Exchanges the first positions of two rows, and their lengths.
  void Swap(int64_t a, int64_t positions_of_a, int64_t b, int64_t positions_of_b);

  // Says what the decoder's next pass adds: `count` positions to one row, or one position to each
  // of the first `rows` ones. What has no room is an exception (IndexError). `computed`: positions
  // that the pass takes, of which those from `count` on are forgotten; 0: as many.
  void BeginPrompt(int64_t row, int64_t count, int64_t computed = 0);
  void BeginStep(int64_t rows);
  // Told of each layer that the decoder has done, by its number from 1 on, as PassInputs::worked.
  void TellWorked(std::function<void(int64_t next)> worked) { worked_ = std::move(worked); }

  // A copy on the cache's device, which does not wait for what that device computes.
  torch::Tensor OnDevice(const std::vector<int64_t>& values);

  // For the decoder, of the pass that was begun.
  int64_t pass_positions() const { return step_ ? pass_rows_ : pass_computed_; }
  // The last one of a prompt's that is kept.
  int64_t prompt_last() const { return pass_count_ - 1; }
  bool is_step() const { return step_; }
  int64_t prompt_begin() const { return lengths_[static_cast<size_t>(pass_row_)]; }
  int64_t step_longest() const { return step_longest_; }
  // Where each of a step's positions is in its sequence, [rows] int64 on the device.
  const torch::Tensor& step_positions() const { return step_positions_; }
  // x: q, k and v of the pass [1, T, heads, D], to be turned by the angles of its positions. Keeps
  // k and v, and returns what attention makes of them, [1, T, H, D].
  torch::Tensor Attend(size_t layer, const ops::Heads& x, const RopeTable& rope, int64_t window,
                       const ops::Masks& masks);
  // Whether steps of the same number of rows differ in nothing but the ids and what
  // step_positions() holds, always in the same place: on CUDA, for heads that its kernel takes.
  bool StepsAreAlike() const { return work_.finished.defined(); }
  void Worked(size_t layers) const {
    if (worked_) worked_(static_cast<int64_t>(layers));
  }
  // The positions of the pass are there.
  void Finish() { Count(1); }
  // They are not, after all: the pass was recorded, not executed.
  void Undo() { Count(-1); }

 private:
  torch::Tensor AttendPrompt(size_t layer, const ops::Heads& x, int64_t window,
                             const ops::Masks& masks);
  torch::Tensor AttendStep(size_t layer, const ops::Heads& x, const RopeTable& rope,
                           int64_t window);
  // Of the pass, `times` as many positions.
  void Count(int64_t times);
  // Writes a step's new rows [1, B, K, D].
  void Keep(const torch::Tensor& kept, const torch::Tensor& added) const;

  Size size_;
  std::unique_ptr<Transfers> transfers_;
  std::vector<torch::Tensor> keys_, values_;  // of each layer [rows, K, positions, D]
  std::vector<int64_t> lengths_;              // of each row
  bool step_ = false;
  int64_t pass_row_ = 0, pass_count_ = 0, pass_computed_ = 0, pass_rows_ = 0;
  int64_t step_longest_ = 0;
  std::function<void(int64_t)> worked_;
  ops::KeptLengths step_lengths_;  // not where steps are alike
  torch::Tensor step_positions_;
  torch::Tensor all_positions_;  // [rows], where steps are alike: step_positions_ is its part
  cuda::KeptWork work_;
  torch::Tensor step_places_;  // [B K] rows of keys_ seen as [rows K positions, D]
};

}  // namespace espalier
