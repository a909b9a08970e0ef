#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/state/checkpoint_store.h"
#include "worker/verbs.h"

namespace espalier {
namespace {

constexpr char kGguf[] = "gguf";

// The newest of a folder of checkpoints, or the folder itself.
absl::StatusOr<std::string> SourceFolder(const std::string& folder) {
  const CheckpointStore store(PosixFileSystem(), {.directory = folder});
  ASSIGN_OR_RETURN(const FoundCheckpoint found, store.FindNewest());
  if (!found.newest && !found.rejected.empty()) return found.rejected.front().reason;
  if (!found.newest) return folder;
  LogInfo(absl::StrCat(folder, " holds checkpoints; taking ", found.newest->folder()));
  return found.newest->folder();
}

absl::StatusOr<std::optional<torch::ScalarType>> TypeOf(const std::string& dtype) {
  if (dtype.empty()) return std::nullopt;
  if (dtype == "fp32") return torch::kFloat;
  if (dtype == "bf16") return torch::kBFloat16;
  if (dtype == "fp16") return torch::kHalf;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype is '", dtype, "'; allowed: fp32, bf16, fp16"));
}

absl::StatusOr<std::optional<GgufType>> GgufTypeOf(const std::string& dtype) {
  if (dtype.empty()) return std::nullopt;
  if (dtype == "fp32") return GgufType::kF32;
  if (dtype == "bf16") return GgufType::kBF16;
  if (dtype == "fp16") return GgufType::kF16;
  if (dtype == "q8_0") return GgufType::kQ8_0;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype is '", dtype, "'; allowed with --format gguf: fp32, bf16, fp16, q8_0"));
}

absl::StatusOr<Exported> Export(const ExportCommand& command) {
  if (command.format == kGguf) {
    ASSIGN_OR_RETURN(const std::optional<GgufType> type, GgufTypeOf(command.dtype));
    return ExportGguf({command.options.from, command.options.output, type});
  }
  if (command.merge) return ExportModel(command.options);
  if (command.options.type) {
    return absl::InvalidArgumentError(
        "--dtype is of a merged model; adapters are exported in fp32: leave it out, or add "
        "--merge");
  }
  if (command.format == "peft") return ExportPeftAdapter(command.options);
  if (command.format == "mlx") return ExportMlxAdapter(command.options);
  return absl::InvalidArgumentError(
      absl::StrCat("--format is '", command.format, "'; allowed: peft, mlx, gguf"));
}

}  // namespace

absl::Status RunExport(ExportCommand command) {
  const bool gguf = command.format == kGguf;
  if (!gguf) {
    ASSIGN_OR_RETURN(command.options.type, TypeOf(command.dtype));
  }
  if (command.merge && !gguf && command.format != "peft") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format ", command.format, " is of adapters and --merge makes a model ",
                     "without, which MLX and transformers load alike; leave one of them out"));
  }
  ASSIGN_OR_RETURN(command.options.from, SourceFolder(command.options.from));
  ASSIGN_OR_RETURN(const Exported exported, Export(command));
  absl::PrintF("%s: %d parameters, %.3g GB in %d %s\n", command.options.output, exported.parameters,
               static_cast<double>(exported.bytes) / 1e9, exported.weight_files,
               exported.weight_files == 1 ? "file" : "files");
  for (const std::string& note : exported.notes) absl::PrintF("note: %s\n", note);
  const std::string& to = command.options.output;
  if (gguf) {
    absl::PrintF("load it: llama-cli -m %s\n", to);
  } else if (command.merge) {
    absl::PrintF("load it: transformers: AutoModelForCausalLM.from_pretrained(\"%s\")\n", to);
  } else if (command.format == "mlx") {
    absl::PrintF("load it: mlx_lm.generate --model %s --adapter-path %s\n", exported.base, to);
  } else {
    absl::PrintF("load it: peft: PeftModel.from_pretrained(base, \"%s\"), base being %s\n", to,
                 exported.base.empty() ? "the model it was trained on" : exported.base);
  }
  return absl::OkStatus();
}

}  // namespace espalier
