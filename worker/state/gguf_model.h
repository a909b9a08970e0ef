// A decoder as llama.cpp has it: which of its architectures computes the same, what a GGUF file
// says of it ("llama.block_count"), and its tensors under llama.cpp's names, turned as those of its
// own converter are. Used by export_gguf.cc. Compute thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/formats/decoder_config.h"
#include "worker/formats/gguf.h"
#include "worker/model/pretrained.h"
#include "worker/state/export_folder.h"

namespace espalier {

struct GgufDecoder {
  std::string architecture;  // llama, qwen2, qwen3 or gpt2
  GgufFacts facts;
  // What llama.cpp does otherwise, for people: sentences.
  std::vector<std::string> notes;
};

// UNIMPLEMENTED names the option that no architecture there has. Where it sees all positions and
// the model only a window, or where scaling of RoPE depends on the length of a text, the file's
// context ends at the last position at which both compute the same.
absl::StatusOr<GgufDecoder> MakeGgufDecoder(const DecoderConfig& config);

// Fp32 on the host, in the order of the file; adapters are merged into their weights. `model` must
// outlive them. Llama's rotary pairs lie side by side there, not half a head apart; GPT-2's weights
// are [out, in]; Llama 3's scaling of RoPE is a tensor of its own.
std::vector<ExportedTensor> GgufTensors(const PretrainedModel& model,
                                        absl::string_view architecture);

// "blk.3.attn_q.weight" of "model.layers.3.self_attn.q_proj.weight".
std::string GgufTensorName(absl::string_view name);

}  // namespace espalier
