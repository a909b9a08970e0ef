// A small recursive model for tests. Used by tests/worker/. One thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "tests/worker/support/tiny_model.h"
#include "worker/model/recursive_model.h"
#include "worker/tensor/torch.h"

namespace espalier {

// 2 x 16, 2 heads, 23 ids, 6 positions where their number matters; two cycles of three passes.
inline DecoderConfig TinyTrmConfig(bool causal) {
  DecoderConfig config;
  config.architecture = Architecture::kTrm;
  config.vocab_size = 23;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.layers = 2;
  config.heads = config.kv_heads = 2;
  config.head_dim = 8;
  config.tie_word_embeddings = false;
  config.max_position_embeddings = 6;
  config.initializer_range = 1;
  RecursionConfig& recursion = config.recursion.emplace();
  recursion.high_cycles = recursion.low_cycles = 2;
  recursion.halt_max_steps = 3;
  recursion.halt_exploration = 0;
  recursion.causal = causal;
  recursion.stablemax = !causal;
  return config;
}

struct TinyTrm {
  explicit TinyTrm(const DecoderConfig& config)
      : parameters(*Parameters::Create(config, Trained(EmbeddingGradient::kDense))) {
    parameters.Initialize(7, config.initializer_range);
    model = std::make_unique<RecursiveModel>(config, parameters);
  }
  Parameters parameters;
  std::unique_ptr<RecursiveModel> model;
};

}  // namespace espalier
