// OpenModel: a model folder, or the newest checkpoint of a folder of them, on its device, with its
// tokenizer: what the verbs that generate begin with. Used by generate_verb.cc, chat_verb.cc,
// serve_verb.cc and verbs.h. Compute thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/model/decoder.h"
#include "worker/model/pretrained.h"
#include "worker/model/recursive_model.h"
#include "worker/tokenizer/tokenizer.h"

namespace espalier {

// Where and how a model is run, of the command line.
struct ModelPlace {
  std::string folder;
  std::string adapter;  // a folder of adapters to put on it, as PEFT has them; empty: none
  std::string device = "auto";
  std::string precision = "fp32";  // fp32, bf16 or fp16
  int threads = 0;                 // 0: the cores that pay
};

struct OpenedModel {
  std::string folder;  // of the model itself
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<PretrainedModel> model;
  std::unique_ptr<Decoder> decoder;           // null: the model is
  std::unique_ptr<RecursiveModel> recursive;  // this
  std::vector<int32_t> stop_ids;              // what ends a text, or an answer

  const DecoderConfig& config() const { return model->config; }
};

// Sets this process's compute threads. A checkpoint is verified; a folder of them stands for the
// newest that is whole. INVALID_ARGUMENT, with what would do, for what is no model, and for a
// device or a precision that there is not.
absl::StatusOr<OpenedModel> OpenModel(const ModelPlace& place);
// The same of a decoder; INVALID_ARGUMENT for another model.
absl::StatusOr<OpenedModel> OpenDecoder(const ModelPlace& place);

}  // namespace espalier
