// The verbs of espalier-worker besides training: `data prepare|inspect|tokenizer`, `rehearse` for
// agents, `self-test` of a device, and `generate`, which continues a text with the model of a
// checkpoint or of any folder in the Hugging Face layout. Used by command_line.cc. One thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/data/dataset.h"
#include "worker/data/learn_tokenizer.h"
#include "worker/data/prepare.h"
#include "worker/model/generate.h"

namespace espalier {

struct PrepareCommand {
  PrepareOptions options;
  std::string format = "text";  // or prompt-completion
  std::string split = "auto";   // auto, document, tail, files or none
  std::string tokenizer;        // tokenizer.json or the folder of one; empty: bytes
};
// Prints what was made to standard output, progress to standard error.
absl::Status RunPrepare(PrepareCommand command);

struct InspectCommand {
  std::string folder;
  InspectOptions options;
  // Hash every shard now, whatever was verified before.
  VerifyShards verify = VerifyShards::kOncePerFile;
};
absl::Status RunInspect(const InspectCommand& command);

// Prints what was learnt to standard output, progress to standard error.
absl::Status RunLearnTokenizer(LearnTokenizerOptions options);

struct RehearseCommand {
  std::string request;  // a file that holds a v1::RehearseJob
};
// Says whether this machine could train the job, or why it cannot. For espalier-agent.
absl::Status RunRehearse(const RehearseCommand& command);

struct SelfTestCommand {
  std::string device = "auto";
  // Empty: all of an accelerator; of the CPU none, with whose fp32 others are compared.
  std::vector<std::string> precisions;
  std::string result;  // a file for a v1::DeviceTrial as JSON; empty: none is written
};
// Prints whether a device computes as the CPU does; FAILED_PRECONDITION where it does not in any of
// the precisions.
absl::Status RunSelfTest(const SelfTestCommand& command);

struct GenerateCommand {
  std::string folder;
  std::string prompt;
  bool chat = false;  // the prompt is a message to the model, framed by its chat template
  GenerateOptions options;
  std::string device = "auto";
  int threads = 0;  // 0: the cores that pay
};
// Prints the prompt and its continuation, token by token.
absl::Status RunGenerate(GenerateCommand command);

}  // namespace espalier
