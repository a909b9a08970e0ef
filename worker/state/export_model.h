// What was trained, in the form that other programs load: a model in the layout of transformers,
// with its adapters merged into it, one file of it for llama.cpp, or the adapters alone as PEFT or
// MLX has them. A folder or file appears when all of it is on the disk. Used by
// worker/export_verb.cc and worker/verbs.h. Compute thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/formats/gguf.h"
#include "worker/tensor/torch.h"

namespace espalier {

struct ExportOptions {
  std::string from;    // a checkpoint, or for a model any folder in the Hugging Face layout
  std::string output;  // a folder that is not there yet
  // Of a model; absent: that of the base's files.
  std::optional<torch::ScalarType> type;
  int64_t shard_bytes = 5'000'000'000;  // most of a file of weights, unless one tensor is larger
};

struct Exported {
  std::string base;  // of adapters: the model they belong to; empty: one of initial weights
  int64_t parameters = 0;
  int64_t bytes = 0;
  int64_t weight_files = 0;
  std::vector<std::string> notes = {};  // what the program that loads it does otherwise: sentences
};

// ALREADY_EXISTS when `output` is there; INVALID_ARGUMENT when a value is beyond the range of the
// type.
absl::StatusOr<Exported> ExportModel(const ExportOptions& options);

struct GgufExportOptions {
  std::string from;    // as above
  std::string output;  // a file that is not there yet
  // Of matrices; what is no matrix, and positions, are in fp32, rows that are no whole blocks of
  // Q8_0 in fp16. Absent: that of the base's files.
  std::optional<GgufType> type;
};
// As ExportModel, with the tokenizer beside the model. UNIMPLEMENTED names what llama.cpp cannot
// compute or cut.
absl::StatusOr<Exported> ExportGguf(const GgufExportOptions& options);
// FAILED_PRECONDITION when `from` holds no adapter; UNIMPLEMENTED for a model that MLX names
// otherwise (GPT-2).
absl::StatusOr<Exported> ExportPeftAdapter(const ExportOptions& options);
absl::StatusOr<Exported> ExportMlxAdapter(const ExportOptions& options);

}  // namespace espalier
