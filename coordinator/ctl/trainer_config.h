// A fine-tuning configuration as scripts around Hugging Face's trainer have it (JSON: the fields of
// TrainingArguments, with "lora" and "quantization"), as a job file. Used by verbs_convert.cc.
// Pure: any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier::ctl {

struct ConvertOptions {
  std::string name = "fine-tune";
  // Prepared folder and model folder; empty: what the configuration names, which may be neither.
  std::string data;
  std::string model;
};

// The job file, with what has no counterpart in it as comments. Comments (//) in the JSON are
// passed over. INVALID_ARGUMENT lists every key that is not known, or has a value that cannot be
// had, with what is allowed.
absl::StatusOr<std::string> ConvertTrainerConfig(absl::string_view json,
                                                 const ConvertOptions& options);

}  // namespace espalier::ctl
