// StepRunner: the ids after one new position of each of several sequences, or the logits on the
// host. On CUDA ids that only a temperature decides are drawn on the device: bringing the logits
// here and going through them takes longer than the step. And steps of as many sequences as came
// before are recorded and from then on launched at once, since launching kernel after kernel takes
// longer than the kernels. Used by batch_generator.h. Compute thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "worker/generation/sample.h"
#include "worker/model/decoder.h"
#include "worker/ops/cuda_ops.h"
#include "worker/tensor/torch.h"

namespace espalier {

class StepRunner {
 public:
  // `decoder` must outlive it.
  explicit StepRunner(const Decoder& decoder) : decoder_(&decoder) {}

  // ids: the newest of each of the first rows of `cache`, which is always the same one. [rows, V]
  // fp32 on the host, until the next call. Throws what LibTorch throws.
  torch::Tensor NextLogits(const std::vector<int64_t>& ids, KeyValueCache& cache);
  // What `samplers`, one for each row, make of those; nothing where logits are not numbers.
  std::vector<std::optional<int32_t>> NextIds(const std::vector<int64_t>& ids,
                                              const std::vector<Sampler*>& samplers,
                                              KeyValueCache& cache);

 private:
  struct Recording {
    int64_t steps = 0;                   // that have run
    torch::Tensor ids;                   // on the device, in their place
    torch::Tensor by;                    // of cuda::DrawIds, too
    torch::Tensor logits, drawn;         // on the device
    RopeTable rope;                      // kept, should the decoder replace its own
    std::unique_ptr<cuda::Graph> graph;  // null: not recorded
  };
  bool CanRecord(const KeyValueCache& cache) const;
  // Logits on the device, and where `by` is defined ids drawn from them.
  struct Computed {
    torch::Tensor logits, drawn;
  };
  Computed Compute(const torch::Tensor& ids, const torch::Tensor& by, KeyValueCache& cache) const;
  // The same, perhaps recorded; `by` on the host, or undefined.
  Computed Step(const std::vector<int64_t>& ids, const torch::Tensor& by, KeyValueCache& cache);
  // Makes the graph of a step that has begun; without one when there is no room for it.
  void Record(Recording& recording, KeyValueCache& cache);
  torch::Tensor OnHost(const torch::Tensor& logits);

  const Decoder* decoder_;
  std::map<int64_t, Recording> recordings_;  // by rows
  bool records_ = true;
  torch::Tensor host_;  // pinned, of the most rows so far
};

}  // namespace espalier
