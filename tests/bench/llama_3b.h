// The shape of Llama 3.2 3B and adapters of rank 16 on all its projections, as
// configs/jobs/lora-llama-3.2-3b.yaml trains them and peers/hugging_face.py builds them. Used by
// step_bench.cc and generation_bench.cc.
#pragma once

#include "worker/formats/decoder_config.h"
#include "worker/formats/lora_config.h"

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

// 24,313,856 numbers.
inline LoraConfig Llama3bAdapters() {
  LoraConfig lora;
  lora.rank = 16;
  lora.alpha = 32;
  return lora;
}

}  // namespace espalier::bench
