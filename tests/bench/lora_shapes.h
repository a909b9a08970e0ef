// The models whose adapters benchmarks train, in shape alone: Llama 3.2 3B, as
// configs/jobs/lora-llama-3.2-3b.yaml trains it and peers/hugging_face.py builds it, and
// SmolLM2-360M, as peers/decoder.py builds it. Used by step_bench.cc, generation_bench.cc and
// grpo_bench.cc.
#pragma once

#include "worker/formats/decoder_config.h"
#include "worker/formats/lora_config.h"
#include "worker/model/parameters.h"
#include "worker/tensor/torch.h"

namespace espalier::bench {

inline DecoderConfig Llama3b() {
  return DecoderConfigFromJson(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
    "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true, "vocab_size": 128256
  })")
      .value();
}

inline DecoderConfig SmolLm360m() {
  return DecoderConfigFromJson(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32,
    "num_attention_heads": 15, "num_key_value_heads": 5, "head_dim": 64,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 100000.0,
    "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true, "vocab_size": 49152
  })")
      .value();
}

// On all projections: 24,313,856 numbers of Llama 3.2 3B, 8,683,520 of SmolLM2-360M.
inline LoraConfig Adapters() {
  LoraConfig lora;
  lora.rank = 16;
  lora.alpha = 32;
  return lora;
}

// Adapters that are trained beside a frozen base, as the trainer has them.
inline Parameters::Options AdaptersAlone(torch::Device device, torch::ScalarType compute_type) {
  Parameters::Options options = Parameters::ForTraining(device, compute_type);
  options.lora = Adapters();
  options.trained = [](const ParameterShape& shape) { return shape.is_adapter(); };
  return options;
}

// Random values made where they lie; Parameters::Initialize, whose values do not depend on the
// device, takes a minute for three billion. Of what is trained adapters alone are allowed.
inline void FillQuickly(Parameters& parameters) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  for (const Parameter& parameter : parameters.all()) {
    torch::Tensor value = parameter.value;
    if (parameter.shape.role == ParameterRole::kNorm) {
      value.fill_(1);
    } else if (!parameter.shape.is_adapter()) {
      value.normal_(0, 0.02);
    }
  }
  parameters.InitializeAdapters(1);
}

}  // namespace espalier::bench
