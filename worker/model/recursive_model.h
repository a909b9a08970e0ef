// RecursiveModel: a tiny recursive model (Jolicoeur-Martineau 2025), driven by DecoderConfig: one
// small stack of layers that improves an answer by thinking about it again and again. Used by
// self_check.cc, worker/generation, worker/state, worker/task and worker/open_model.h. Compute
// thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/model/model.h"
#include "worker/model/parameters.h"
#include "worker/ops/ops.h"
#include "worker/tensor/torch.h"

namespace espalier {

// Failures of LibTorch and ids outside the vocabulary are exceptions: call within CatchTorch.
// Shapes: B sequences, T positions, C width, V ids.
class RecursiveModel final : public Model {
 public:
  // `parameters` must outlive it and have been made for the same config.
  RecursiveModel(const DecoderConfig& config, const Parameters& parameters);

  // What it has come to about B sequences, [B, T, C] each, in the type of the residual stream: the
  // answer, and what is thought about it.
  struct State {
    torch::Tensor high, low;
  };
  // Before the first step: the same for every position.
  State Begin(int64_t rows, int64_t positions) const;
  // One supervision step: high_cycles times through low_cycles passes to the low state and one to
  // the high one, the last time with gradients where they are enabled. ids [B, T] int64. What is
  // given back is to be detached before the next step.
  State Think(const torch::Tensor& ids, const State& from, const PassInputs& inputs = {}) const;

  // Sum of the losses of targets [B, T] int64 (kIgnoredTarget: none) by what `high` gives for each
  // position itself: a target is not the next token but that of its place.
  torch::Tensor LossSum(const torch::Tensor& high, const torch::Tensor& targets,
                        const RowLoss& loss, const PassInputs& inputs = {}) const;
  // [B, 2] fp32: logits of being right, and so of halting, and of going on; read at the first
  // position or, where the config says so, at positions `last` [B] int64.
  torch::Tensor Halting(const torch::Tensor& high, const torch::Tensor& last) const;
  // [B, T, C] -> [B, T, V].
  torch::Tensor Logits(const torch::Tensor& high) const;

  const DecoderConfig& config() const override { return config_; }
  const RecursionConfig& recursion() const { return *config_.recursion; }
  torch::Device device() const override { return embedding_.device(); }
  const RopeTable& rope() const override { return rope_; }
  void set_recompute(std::vector<bool> layers) override { recompute_ = std::move(layers); }

 private:
  // A gated feed-forward part, over channels or positions, and the norm behind it.
  struct Gated {
    ops::Projection gate_up, down;
    ops::Norm norm;
  };
  struct Layer {
    Gated feed_forward, mixer;          // the latter in place of attention
    ops::Projection qkv, o;             // undefined weights: none
    std::vector<torch::Tensor> leaves;  // all of these
  };
  // A weight that a pass uses many times. Its gradients meet in a tensor of the pass, and are added
  // to the leaf's own at once, when the last has come: a pass that fails halfway has added nothing.
  struct Shared {
    torch::Tensor leaf;
    torch::Tensor of_pass;  // the same memory
  };
  Layer MakeLayer(int64_t layer, const Parameters& parameters);
  Gated MakeGated(const std::string& name, int64_t width, const Parameters& parameters);
  ops::Projection Share(const std::string& name, const Parameters& parameters);
  ops::Norm NormOf(int64_t width) const;
  void BeginPass(const torch::Tensor& injected, const torch::Tensor& first,
                 const PassInputs& inputs) const;

  torch::Tensor Embedded(const torch::Tensor& ids, const PassInputs& inputs) const;
  State Cycle(const State& from, const torch::Tensor& injected, const PassInputs& inputs) const;
  // What all layers make of x, plus `plus` where that is defined.
  torch::Tensor Through(torch::Tensor x, const PassInputs& inputs,
                        const torch::Tensor& plus = {}) const;
  torch::Tensor KeptOrRecomputed(const torch::Tensor& x, size_t layer,
                                 const torch::Tensor& plus) const;
  torch::Tensor RunLayer(const torch::Tensor& x, size_t layer,
                         const torch::Tensor& plus = {}) const;
  torch::Tensor Attend(const Layer& layer, const torch::Tensor& x) const;
  torch::Tensor FeedForward(const Gated& part, const torch::Tensor& x,
                            const torch::Tensor& plus = {}) const;
  RopeTable RopeOf(int64_t positions) const;

  DecoderConfig config_;
  std::vector<Shared> shared_;
  std::vector<Layer> layers_;
  ops::Norm norm_;
  torch::Tensor embedding_, head_, high_, low_;
  torch::Tensor positions_;  // learned; undefined: none
  ops::Projection halting_;
  torch::ScalarType stream_;  // of states
  int64_t trained_elements_ = 0;
  mutable RopeTable rope_;  // grows with the longest sequence seen
  ops::Masks masks_ = c10::make_intrusive<CausalMasks>();
  std::vector<bool> recompute_;  // empty: none
};

// The model of the config's architecture, this one or a decoder. `parameters` must outlive it and
// have been made for the same config.
std::unique_ptr<Model> MakeModel(const DecoderConfig& config, const Parameters& parameters);

// The model of a job whose architecture is trm, which the job's task has made sure of.
const RecursiveModel& RecursiveModelOf(const Model& model);

}  // namespace espalier
