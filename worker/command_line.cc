#include "worker/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "common/platform/platform.h"
#include "worker/collective/mpi_world.h"
#include "worker/launch_environment.h"
#include "worker/run.h"
#include "worker/tensor/torch_compat.h"
#include "worker/verbs.h"

namespace espalier {
namespace {

constexpr char kAbout[] =
    "espalier-worker trains as one rank of a job, and does what needs the tensor library.\n"
    "Examples:\n"
    "  espalier-worker --standalone job.yaml\n"
    "  mpirun -np 2 espalier-worker --standalone job.yaml --set train.steps=100\n"
    "  mpirun -np 2 --host studio,macbook espalier-worker --coordinator studio:7070 --job "
    "job.yaml\n"
    "Exit codes: 0 done, 1 failed, 2 bad input, 3 a peer was lost (try again), 4 replaced by a "
    "newer\ngeneration.";

constexpr char kPrepareAbout[] =
    "Turn text and .jsonl files into a folder of tokens that every node can train from.\n"
    "Examples:\n"
    "  espalier data prepare --output build/text README.md coordinator worker\n"
    "  espalier data prepare --output build/text --tokenizer build/bpe README.md worker\n"
    "  espalier data prepare --output build/chat --format auto --tokenizer models/smol chat.jsonl";
constexpr char kPreviewAbout[] =
    "Show rows of a prepared folder token by token, and which tokens count in the loss.\n"
    "Example: espalier data preview build/chat --rows 3";
constexpr char kTokenizerAbout[] =
    "Learn a byte-level BPE tokenizer from text, to prepare data with.\n"
    "Example: espalier data tokenizer --output build/bpe --vocab-size 8192 README.md worker";
constexpr char kInspectAbout[] =
    "Show what a prepared folder holds and verify it.\n"
    "Example: espalier data inspect build/text --samples 2";
constexpr char kSelfTestAbout[] =
    "Try whether a device computes as the processor does; every run begins with that.\n"
    "Example: espalier self-test --device mps";
constexpr char kExportAbout[] =
    "Write what was trained in the form that other programs load: an adapter, or a whole model.\n"
    "Examples:\n"
    "  espalier export --checkpoint checkpoints/step-00000336 --output adapter\n"
    "  espalier export --checkpoint checkpoints --merge --dtype bf16 --output model\n"
    "  espalier export --checkpoint checkpoints --format gguf --dtype q8_0 --output model.gguf";

// What differs from rank to rank is given once for all of them, or once for each.
struct TrainCommand {
  WorkerOptions options;
  std::vector<std::string> nodes, devices, tls_ca, tls_cert, tls_key;
  std::vector<int> threads;
  std::string standalone;
  std::string external;
  std::string log_level = "info";
};

void AddTrainOptions(CLI::App& app, TrainCommand& train) {
  WorkerOptions& o = train.options;
  app.add_option("--standalone", train.standalone, "Train this job file without a coordinator");
  app.add_option(
      "--job", train.external,
      "Train this job file under the coordinator, started by hand (launch.mode external)");
  app.add_option("--set", o.overrides, "KEY=VALUE over the job file; may be repeated")
      ->type_size(1)
      ->allow_extra_args(false);
  app.add_option("--coordinator", o.coordinator,
                 "HOST:PORT of espalierd, or its state folder on this machine");
  app.add_option("--job-id", o.job_id, "Given by the launcher of espalierd");
  app.add_option("--generation", o.generation, "Given by the launcher of espalierd");
  app.add_option("--rank-count", o.rank_count, "Refuse a world of another size");
  const auto add = [&](const char* name, auto& values, const char* about) {
    app.add_option(name, values, about)->type_size(1)->allow_extra_args(false);
  };
  add("--node", train.nodes, "Name of this node; default: the host's name");
  add("--threads", train.threads, "Compute threads; 0, the default: as the job says");
  add("--device", train.devices, "auto, cpu, cuda or mps; default: as the job says");
  add("--tls-ca", train.tls_ca, "Certificate of the authority (PEM)");
  add("--tls-cert", train.tls_cert, "Certificate of this worker (PEM)");
  add("--tls-key", train.tls_key, "Its key (PEM)");
  app.add_flag("--warm", o.warm,
               "Keep what is trained in shared memory also where no espalier-agent gives it back: "
               "when the run is killed and started again, it goes on from there");
  app.add_option("--slow-down", o.pace.slow_down,
                 "For benchmarks: computing takes so many times as long")
      ->check(CLI::Range(1.0, 1000.0));
  app.add_option("--pretended-seconds", o.pace.pretended_seconds,
                 "For benchmarks: a sequence takes so long, in which nothing is computed or learnt")
      ->check(CLI::Range(0.0, 1000.0));
  app.add_option("--log-level", train.log_level, "debug, info, warning or error");
}

void AddRowOptions(CLI::App& app, PrepareCommand& command) {
  PrepareOptions& o = command.options;
  app.add_option("--loss", command.loss,
                 "Which tokens of a row count: all, or completions (what the assistant says); "
                 "default: completions of prompt-completion, all of others");
  app.add_option("--max-tokens", o.max_tokens, "Most tokens of a row; 0: any number")
      ->capture_default_str();
  app.add_option("--long-rows", command.long_rows, "Rows of more: cut (their end), error, skip")
      ->capture_default_str();
  app.add_option("--bad-rows", command.bad_rows,
                 "Rows that are empty or malformed: error, or skip, with their number told")
      ->capture_default_str();
  app.add_option("--jsonl-field", o.jsonl_field, "Field of a row that holds its text")
      ->capture_default_str();
  app.add_option("--prompt-field", o.fields.prompt, "Field of a row that holds the prompt")
      ->capture_default_str();
  app.add_option("--completion-field", o.fields.completion,
                 "Field of a row that holds the completion")
      ->capture_default_str();
  app.add_option("--messages-field", o.fields.messages, "Field of a row that holds its messages")
      ->capture_default_str();
}

void AddPrepare(CLI::App& data, PrepareCommand& command) {
  CLI::App& app = *data.add_subcommand("prepare", kPrepareAbout);
  PrepareOptions& o = command.options;
  app.add_option("files", o.inputs, "Files and folders")->required();
  app.add_option("--output", o.output, "Folder to be made")->required();
  app.add_option(
      "--tokenizer", command.tokenizer,
      "A tokenizer.json, or the folder of one: a model, a checkpoint, what `espalier data "
      "tokenizer` wrote; default: a token for each byte");
  app.add_option("--format", command.format,
                 "text; or, of rows of .jsonl that are examples for fine-tuning: auto, "
                 "messages, sharegpt, alpaca, openassistant, prompt-completion, text-rows; "
                 "prompts: to be completed and judged; preferences: with a chosen and a rejected "
                 "answer")
      ->capture_default_str();
  AddRowOptions(app, command);
  app.add_option("--split", command.split,
                 "What is held out for validation: auto, document, tail, files, none")
      ->capture_default_str();
  app.add_option("--validation-fraction", o.validation_fraction, "Part held out")
      ->capture_default_str();
  app.add_option("--validation-files", o.validation_inputs, "Hold out these files instead");
  app.add_option("--split-seed", o.split_seed, "Seed of the choice of documents")
      ->capture_default_str();
  app.add_option("--shard-tokens", o.shard_tokens, "Tokens of one shard file")
      ->capture_default_str();
}

void AddTokenizer(CLI::App& data, LearnTokenizerOptions& o) {
  CLI::App& app = *data.add_subcommand("tokenizer", kTokenizerAbout);
  app.add_option("files", o.inputs, "Files and folders")->required();
  app.add_option("--output", o.output, "Folder to be made")->required();
  app.add_option("--vocab-size", o.trainer.vocab_size,
                 "Ids, with the 256 bytes and the special tokens; at most 2^20")
      ->capture_default_str();
  app.add_option("--special-token", o.trainer.special_tokens,
                 "A token that no text spells; may be repeated. The first one ends documents")
      ->type_size(1)
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--min-count", o.trainer.min_count, "Merge no pair that is met less often")
      ->capture_default_str();
  app.add_option("--sample-bytes", o.sample_bytes, "Learn from so much of the input at most")
      ->capture_default_str();
  app.add_option("--jsonl-field", o.jsonl_field, "Field of a .jsonl line that holds its text")
      ->capture_default_str();
}

void AddInspect(CLI::App& data, InspectCommand& command) {
  CLI::App& app = *data.add_subcommand("inspect", kInspectAbout);
  app.add_option("folder", command.folder, "Folder written by prepare")->required();
  app.add_option("--samples", command.options.shown_samples, "Samples shown of each split")
      ->capture_default_str();
  app.add_option("--sequence-length", command.options.sequence_length, "Tokens of a sample")
      ->capture_default_str();
  app.add_flag_callback(
      "--verify", [&command] { command.verify = VerifyShards::kAll; }, "Hash every shard again");
}

void AddPreview(CLI::App& data, PreviewCommand& command) {
  CLI::App& app = *data.add_subcommand("preview", kPreviewAbout);
  PreviewOptions& o = command.options;
  app.add_option("folder", command.folder, "Folder written by prepare")->required();
  app.add_option("--rows", o.rows, "Rows shown")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--first", o.first, "Number of the first of them")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--split", o.split, "train or validation")->capture_default_str();
  app.add_option("--sequence-length", o.sequence_length, "Tokens of a sample")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void AddSelfTest(CLI::App& parent, SelfTestCommand& command) {
  CLI::App& app = *parent.add_subcommand("self-test", kSelfTestAbout);
  app.add_option("--device", command.device, "auto, cpu, cuda or mps")->capture_default_str();
  app.add_option("--precision", command.precisions,
                 "fp32, bf16 or fp16; may be repeated; default: all that are trained in there");
  app.add_option("--result", command.result, "Write the result to this file too, as JSON");
}

void AddExport(CLI::App& parent, ExportCommand& command) {
  CLI::App& app = *parent.add_subcommand("export", kExportAbout);
  app.add_option("--checkpoint", command.options.from,
                 "Checkpoint, or a folder of them (the newest)")
      ->required();
  app.add_option("--output", command.options.output, "Folder to be made, or with gguf file")
      ->required();
  app.add_flag("--merge", command.merge,
               "Write the whole model, with the adapters added to its weights");
  app.add_option("--dtype", command.dtype,
                 "Of a merged model: fp32, bf16 or fp16, with gguf also q8_0; default: that of its "
                 "base");
  app.add_option("--format", command.format,
                 "Of adapters that are not merged: peft or mlx; or gguf: the whole model as a file "
                 "for llama.cpp")
      ->capture_default_str();
}

WorkerExit Report(const CLI::App& app, const absl::Status& status) {
  if (!status.ok()) absl::FPrintF(stderr, "%s: %s\n", app.get_name(), status.message());
  return ExitOf(status);
}

// This rank's of the values that an option was given.
template <typename T>
absl::Status TakeOwn(const char* option, const std::vector<T>& given, T& value) {
  if (given.empty()) return absl::OkStatus();
  const LaunchEnvironment environment = ReadLaunchEnvironment(EnvironmentVariable);
  const size_t ranks = static_cast<size_t>(environment.ranks);
  if (given.size() != 1 && given.size() != ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, " is given ", given.size(), " times and there are ", ranks,
                     " ranks; give it once for all of them, or once for each"));
  }
  value = given.size() == 1 ? given.front() : given[static_cast<size_t>(environment.rank)];
  return absl::OkStatus();
}

absl::Status TakeOwn(TrainCommand& train) {
  WorkerOptions& o = train.options;
  TlsFiles tls;
  RETURN_IF_ERROR(TakeOwn("--node", train.nodes, o.node));
  RETURN_IF_ERROR(TakeOwn("--threads", train.threads, o.threads));
  RETURN_IF_ERROR(TakeOwn("--device", train.devices, o.device));
  RETURN_IF_ERROR(TakeOwn("--tls-ca", train.tls_ca, tls.ca));
  RETURN_IF_ERROR(TakeOwn("--tls-cert", train.tls_cert, tls.certificate));
  RETURN_IF_ERROR(TakeOwn("--tls-key", train.tls_key, tls.key));
  const int files = !tls.ca.empty() + !tls.certificate.empty() + !tls.key.empty();
  if (files != 0 && files != 3) {
    return absl::InvalidArgumentError("--tls-ca, --tls-cert and --tls-key go together");
  }
  if (files == 3) o.tls = tls;
  return absl::OkStatus();
}

// Which of the three ways to train was meant.
absl::Status CheckTrain(TrainCommand& train) {
  WorkerOptions& o = train.options;
  const bool standalone = !train.standalone.empty(), external = !train.external.empty();
  const bool launched = !o.job_id.empty();
  if (standalone + external + launched != 1) {
    return absl::InvalidArgumentError(
        "give exactly one of --standalone FILE, --job FILE (with --coordinator) and --job-id (with "
        "--coordinator); see --help");
  }
  if (standalone != o.coordinator.empty()) {
    return absl::InvalidArgumentError(standalone
                                          ? "--standalone works without --coordinator"
                                          : "--coordinator HOST:PORT or STATE_FOLDER is missing");
  }
  if (launched && o.generation < 1) return absl::InvalidArgumentError("--generation is missing");
  o.job_file = standalone ? train.standalone : train.external;
  return TakeOwn(train);
}

WorkerExit RunTrain(const CLI::App& app, TrainCommand& train) {
  if (const absl::Status status = CheckTrain(train); !status.ok()) return Report(app, status);
  const absl::StatusOr<LogLevel> level = ParseLogLevel(train.log_level);
  if (!level.ok()) return Report(app, level.status());
  SetLogLevel(*level);
  return RunWorker(train.options);
}

// Read by coordinator/launcher/versions.h, which compares those of the nodes.
std::string VersionText() {
  const std::string mpi = MpiWorld::LibraryVersion();  // "Open MPI v4.1.4, package: ..."
  return absl::StrCat("espalier-worker ", ESPALIER_VERSION, " (LibTorch ", TorchVersion(), ", ",
                      mpi.substr(0, mpi.find(',')), ")");
}

// `espalier` hands verbs over under its own name, so that their help says what was typed.
std::string ProgramName(absl::string_view program) {
  return program == "espalier" ? "espalier" : "espalier-worker";
}

}  // namespace

WorkerExit RunCommandLine(int argc, char** argv) {
  CLI::App app(kAbout, ProgramName(argv[0]));
  app.set_version_flag("--version", VersionText);
  app.require_subcommand(0, 1);
  TrainCommand train;
  PrepareCommand prepare;
  LearnTokenizerOptions tokenizer;
  InspectCommand inspect;
  PreviewCommand preview;
  MakeDataCommand make_data;
  RehearseCommand rehearse;
  SelfTestCommand self_test;
  ExportCommand export_command;
  GenerateCommand generate;
  ChatCommand chat;
  ServeCommand serve;
  AddTrainOptions(app, train);
  CLI::App& data = *app.add_subcommand("data", "Prepare text for training, and look at it.");
  data.require_subcommand(1);
  AddPrepare(data, prepare);
  AddTokenizer(data, tokenizer);
  AddInspect(data, inspect);
  AddPreview(data, preview);
  AddMakeData(data, make_data);
  app.add_subcommand("rehearse", "For espalier-agent: whether this machine could train a job.")
      ->add_option("REQUEST", rehearse.request, "File of the request")
      ->required();
  AddSelfTest(app, self_test);
  AddExport(app, export_command);
  AddGenerate(app, generate);
  AddChat(app, chat);
  AddServe(app, serve);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? WorkerExit::kDone : WorkerExit::kBadInput;
  }
  if (const absl::Status one = CheckOpenMpRuntimes(LoadedLibraries()); !one.ok()) {
    return Report(app, one);
  }
  if (data.got_subcommand("prepare")) return Report(app, RunPrepare(std::move(prepare)));
  if (data.got_subcommand("tokenizer")) return Report(app, RunLearnTokenizer(std::move(tokenizer)));
  if (data.got_subcommand("preview")) return Report(app, RunPreview(std::move(preview)));
  if (data.got_subcommand("make")) return Report(app, RunMakeData(make_data));
  if (data.got_subcommand("inspect")) return Report(app, RunInspect(inspect));
  if (app.got_subcommand("rehearse")) return Report(app, RunRehearse(rehearse));
  if (app.got_subcommand("self-test")) return Report(app, RunSelfTest(self_test));
  if (app.got_subcommand("export")) return Report(app, RunExport(std::move(export_command)));
  if (app.got_subcommand("generate")) return Report(app, RunGenerate(std::move(generate)));
  if (app.got_subcommand("chat")) return Report(app, RunChat(std::move(chat)));
  if (app.got_subcommand("serve")) return Report(app, RunServe(std::move(serve)));
  return RunTrain(app, train);
}

}  // namespace espalier
