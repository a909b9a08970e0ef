// `espalier-worker generate`: continues a text with the model of a checkpoint or of any folder in
// the Hugging Face layout. Used by command_line.cc. One thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/model/generate.h"

namespace espalier {

struct GenerateCommand {
  std::string folder;
  std::string prompt;
  GenerateOptions options;
  std::string device = "auto";
  int threads = 0;  // 0: the cores that pay
};
// Prints the prompt and its continuation, token by token.
absl::Status RunGenerate(GenerateCommand command);

}  // namespace espalier
