// The verbs of espalier-worker besides training: `data prepare|inspect|preview|tokenizer|make`,
// `rehearse` for agents, `self-test` of a device, `export` of what was trained, and `generate`,
// `chat` and `serve`, which have the model of a checkpoint or of any folder in the Hugging Face
// layout continue texts and conversations. Used by command_line.cc. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/data/inspect.h"
#include "worker/data/learn_tokenizer.h"
#include "worker/data/prepare.h"
#include "worker/data/preview.h"
#include "worker/generation/batch_generator.h"
#include "worker/open_model.h"
#include "worker/reward/arithmetic.h"
#include "worker/reward/sudoku.h"
#include "worker/reward/unit_conversion.h"
#include "worker/reward/wordle_teacher.h"
#include "worker/state/export_model.h"

namespace CLI {
class App;
}  // namespace CLI

namespace espalier {

struct PrepareCommand {
  PrepareOptions options;
  std::string format = "text";     // or auto, or a RowFormatName
  std::string loss;                // all or completions; empty: by the format
  std::string bad_rows = "error";  // or skip
  std::string long_rows = "cut";   // or error, or skip
  std::string split = "auto";      // auto, document, tail, files or none
  std::string tokenizer;           // tokenizer.json or the folder of one; empty: bytes
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

struct PreviewCommand {
  std::string folder;
  PreviewOptions options;
};
// Prints rows token by token, in colour where standard output is a terminal.
absl::Status RunPreview(PreviewCommand command);

// Prints what was learnt to standard output, progress to standard error.
absl::Status RunLearnTokenizer(LearnTokenizerOptions options);

struct MakeDataCommand {
  std::string kind;  // wordle, units, arithmetic or sudoku
  std::string output;
  DataAmount amount;
  std::string form;  // chat or plain; empty: chat of wordle, plain of others
  std::string words, secrets;
  WordleTeacher teacher;
  std::string hold_out = "secrets";
  double erring = 0;
  UnitQuestionOptions units;
  ArithmeticOptions arithmetic;
  SudokuOptions sudoku;
};
// Prints what was made.
absl::Status RunMakeData(const MakeDataCommand& command);
void AddMakeData(CLI::App& data, MakeDataCommand& command);

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

struct ExportCommand {
  ExportOptions options;
  bool merge = false;
  std::string dtype;            // fp32, bf16, fp16, of gguf also q8_0; empty: that of the base
  std::string format = "peft";  // or mlx: of adapters that are not merged; or gguf: merged
};
// Prints what was written, and what loads it.
absl::Status RunExport(ExportCommand command);

struct GenerateCommand {
  ModelPlace place;
  std::string prompt;
  bool chat = false;  // the prompt is a message to the model, framed by its chat template
  Sequence sequence;  // without its prompt
  std::optional<int64_t> max_tokens;  // absent: the sequence's, where there is room for so many
  std::vector<std::string> stop;
};
// Prints the prompt and its continuation, token by token.
absl::Status RunGenerate(GenerateCommand command);

struct ChatCommand {
  ModelPlace place;
  std::string system;  // said to the model before all else
  Sequence sequence;   // without its prompt
  std::vector<std::string> stop;
  int64_t context = 4096;  // positions, those of the model at most
  bool terminal = false;   // a person types
};
// Answers the lines of standard input, one after the other, until it ends.
absl::Status RunChat(ChatCommand command);

struct ServeCommand {
  ModelPlace place;
  std::string name;  // of the model; empty: its folder's
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: one that is free
  std::string api_key;
  std::string api_key_file;  // instead, so that no list of processes shows it
  int64_t rows = 16;         // answers that are generated at a time
  int64_t context = 4096;    // positions of each, those of the model at most
  int64_t most_waiting = 64;
};
// Serves until SIGTERM or SIGINT, of which a second one ends it at once. Prints where.
absl::Status RunServe(ServeCommand command);

// Options of the three, by which `parent` fills the commands.
void AddGenerate(CLI::App& parent, GenerateCommand& command);
void AddChat(CLI::App& parent, ChatCommand& command);
void AddServe(CLI::App& parent, ServeCommand& command);

}  // namespace espalier
