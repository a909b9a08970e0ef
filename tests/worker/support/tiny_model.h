// Small decoders for tests. Used by tests/worker/. One thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "worker/model/decoder.h"
#include "worker/tensor/torch.h"

namespace espalier {

// 3 x 16, 4 heads of 6, 2 key/value heads, 23 ids.
inline DecoderConfig TinyModelConfig() {
  DecoderConfig config;
  config.vocab_size = 23;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 6;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.3;
  return config;
}

// The same size, with what GPT-2 is built of.
inline DecoderConfig TinyGpt2Config() {
  DecoderConfig config = TinyModelConfig();
  config.architecture = Architecture::kGpt2;
  config.kv_heads = config.heads;
  config.head_dim = config.hidden_size / config.heads;
  return config;
}

// All is trained; what becomes of an untied embedding's gradient is said.
inline Parameters::Options Trained(EmbeddingGradient untied_embedding,
                                   torch::Device device = torch::kCPU,
                                   torch::ScalarType type = torch::kFloat) {
  Parameters::Options options = Parameters::ForTraining(device, type);
  options.untied_embedding = untied_embedding;
  return options;
}

struct TinyModel {
  explicit TinyModel(const DecoderConfig& config, torch::ScalarType type = torch::kFloat)
      : TinyModel(config, Trained(EmbeddingGradient::kDense, torch::kCPU, type)) {}
  TinyModel(const DecoderConfig& config, const Parameters::Options& options)
      : parameters(*Parameters::Create(config, options)) {
    parameters.Initialize(7, config.initializer_range);
    decoder = std::make_unique<Decoder>(config, parameters);
  }
  Parameters parameters;
  std::unique_ptr<Decoder> decoder;
};

// Ids that repeat nothing, [batch, time].
inline torch::Tensor SomeIds(int64_t batch, int64_t time, int64_t vocab) {
  return (torch::arange(batch * time) * 7 + 3).remainder(vocab).view({batch, time});
}

inline double LargestDifference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

}  // namespace espalier
