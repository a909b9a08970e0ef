// Model: what all models are to those who train one: a device, a config, and what a pass over some
// rows takes besides its tensors. A task computes its loss with the model of its architecture:
// Decoder (decoder.h) or RecursiveModel (recursive_model.h). Used by worker/model, worker/state,
// worker/sync, worker/task, worker/train and worker/session.cc. Compute thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/formats/decoder_config.h"
#include "worker/model/parameters.h"
#include "worker/ops/dropout.h"
#include "worker/ops/operands.h"
#include "worker/tensor/torch.h"

namespace espalier {

// Rows of the embedding to look ids up in, instead of the table: fp32 leaves whose gradient is
// apart from the table's, which is then the head's alone where the two are tied.
struct EmbeddingRows {
  torch::Tensor rows;    // [rows, C] with a grad() to add to; undefined: the table
  torch::Tensor row_of;  // [V] int64: the row of each id that is looked up
};

// What a training pass takes besides ids and targets. What is called is called on the thread that
// runs the pass, forward or backward.
struct PassInputs {
  // For training: acts on what each layer adds to the residual stream.
  DropoutKeys dropout;
  EmbeddingRows lookup;
  SharedRows shared;
  // False: as the model was before there were adapters.
  bool adapters = true;
  // Called during the backward pass when every gradient of flat elements [0, end) is final for
  // this pass, with ends that never fall: at each BackwardStage that gradients reach, the embedding
  // (end = all) included. Of a tied table that is trained, without a lookup, nothing is final
  // before that. On a device the work is queued, not done. For the last micro-batch of a step.
  std::function<void(int64_t end)> gradients_final;
  // Called after each layer, forward and backward, and each chunk of the loss, with the layer that
  // comes next (from 0 on; as many as there are: the loss; -1: the embedding): work goes on.
  std::function<void(int64_t next)> worked;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const DecoderConfig& config() const = 0;
  virtual torch::Device device() const = 0;
  // The angles that passes read besides parameters and arguments; replaced by a longer one when a
  // longer sequence comes. Undefined where no position is turned.
  virtual const RopeTable& rope() const = 0;
  // Layers that are computed again in the backward pass instead of keeping their intermediate
  // values (recompute.h): one flag per layer. Changes memory and time, not a bit of the result.
  virtual void set_recompute(std::vector<bool> layers) = 0;
};

// For models: throws for an id that is neither `extra` nor of the vocabulary, on the CPU, whose
// kernels index memory with ids. On other devices that would cost a wait: there ids are checked
// where they come from, on the host, since MPS takes zeros for those outside (pytorch#144825,
// before 2.10).
void CheckIds(const torch::Tensor& ids, const DecoderConfig& config, int64_t extra);
// Rows of the embedding [V, C], or those of the lookup, for ids [B, T]: [B, T, C].
torch::Tensor EmbeddedIds(const torch::Tensor& ids, const torch::Tensor& embedding,
                          const EmbeddingRows& lookup);

}  // namespace espalier
