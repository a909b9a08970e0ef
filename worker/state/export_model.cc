#include "worker/state/export_model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "worker/model/adapter_files.h"
#include "worker/model/pretrained.h"
#include "worker/state/checkpoint.h"
#include "worker/state/export_folder.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr int64_t kTextBytesMax = int64_t{64} << 20;
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",      "tokenizer_config.json",
                                           "tokenizer.model",     "special_tokens_map.json",
                                           "chat_template.jinja", "vocab.json",
                                           "merges.txt"};

json ReadJson(const std::string& folder, absl::string_view name) {
  const auto text = PosixFileSystem().Read(JoinPath(folder, name), kTextBytesMax);
  json read = json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  return read.is_object() ? read : json::object();
}

// How to generate is the base's to say, which may say more than a checkpoint does; but answers end
// also by what the checkpoint has learnt to end them with.
absl::Status AddGenerationConfig(const std::string& base, const std::string& from,
                                 ExportFolder& folder) {
  constexpr char kName[] = "generation_config.json", kEnds[] = "eos_token_id";
  const auto ids = [](const json& ends) {
    return ends.is_array() ? ends : ends.is_number() ? json::array({ends}) : json::array();
  };
  json of_base = ReadJson(base, kName);
  const bool has_own = !of_base.empty();
  json ends = ids(of_base[kEnds]);
  const size_t known = ends.size();
  for (const json& id : ids(ReadJson(from, kName)[kEnds])) {
    if (!absl::c_linear_search(ends, id)) ends.push_back(id);
  }
  if (!has_own || ends.size() == known) return folder.CopyText(kName, {base, from});
  of_base[kEnds] = ends;
  return folder.WriteText(kName, of_base.dump(2) + "\n");
}

absl::Status CopyFilesBeside(const std::string& base, const std::string& from,
                             ExportFolder& folder) {
  RETURN_IF_ERROR(base.empty() ? folder.CopyText("generation_config.json", {from})
                               : AddGenerationConfig(base, from, folder));
  ASSIGN_OR_RETURN(const std::string tokenizer, TokenizerFolder(base, from));
  for (const char* name : kTokenizerFiles) RETURN_IF_ERROR(folder.CopyText(name, {tokenizer}));
  return absl::OkStatus();
}

std::string TypeName(torch::ScalarType type) {
  if (type == torch::kBFloat16) return "bfloat16";
  return type == torch::kHalf ? "float16" : "float32";
}

// The base's own, which may say more than the decoder reads, with the type of these weights.
std::string ConfigJson(const std::string& base, const DecoderConfig& config,
                       torch::ScalarType type) {
  json object = base.empty() ? json::object() : ReadJson(base, "config.json");
  if (object.empty()) {
    object = json::parse(DecoderConfigToJson(config), nullptr, /*allow_exceptions=*/false);
  }
  const bool has_new_key = object.contains("dtype");
  if (has_new_key) object["dtype"] = TypeName(type);
  if (!has_new_key || object.contains("torch_dtype")) object["torch_dtype"] = TypeName(type);
  return object.dump(2) + "\n";
}

// Rows of "| fact | value |" of what a checkpoint says of its run.
std::string FactsOf(const std::string& from) {
  const json state = ReadJson(from, "trainer_state.json"),
             manifest = ReadJson(from, "manifest.json");
  std::string rows;
  const auto add = [&](absl::string_view fact, const json& value) {
    if (value.is_null()) return;
    absl::StrAppend(&rows, "| ", fact, " | ",
                    value.is_string() ? value.get<std::string>() : value.dump(), " |\n");
  };
  const auto at = [&](const json& object, const char* path) {
    const json::json_pointer pointer(path);
    return object.contains(pointer) ? object.at(pointer) : json();
  };
  add("steps", at(state, "/step"));
  add("sequences of a step", at(state, "/spec/train/global_batch"));
  add("tokens of a sequence", at(state, "/spec/data/sequence_length"));
  add("validation loss (nats per token)", at(manifest, "/validation_loss"));
  add("learning rate", at(state, "/spec/train/schedule/learning_rate"));
  add("precision", at(state, "/spec/train/precision"));
  add("seed", at(state, "/spec/train/seed"));
  add("job", at(state, "/spec/name"));
  add("data (SHA-256 of its manifest)", at(state, "/order/data_sha256"));
  add("Espalier", at(state, "/version"));
  return rows;
}

std::string ModelCard(const ExportOptions& options, const std::string& base,
                      const std::optional<LoraConfig>& lora, absl::string_view library) {
  std::string card = absl::StrCat("---\nlibrary_name: ", library, "\n");
  if (!base.empty()) absl::StrAppend(&card, "base_model: ", json(base).dump(), "\n");
  if (lora) absl::StrAppend(&card, "tags:\n- lora\n");
  absl::StrAppend(&card, "---\n\nTrained with Espalier.\n\n| fact | value |\n|---|---|\n");
  if (!base.empty()) absl::StrAppend(&card, "| base | ", base, " |\n");
  if (lora) {
    absl::StrAppend(&card, absl::StrFormat("| adapters | rank %d, alpha %g, dropout %g%s |\n",
                                           lora->rank, lora->alpha, lora->dropout,
                                           lora->rslora ? ", rank-stabilised" : ""));
  }
  return card + FactsOf(options.from);
}

absl::Status CheckIsAdapter(const std::string& from) {
  if (HoldsAdapter(from)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(from, " holds no adapter (", kAdapterConfigName,
                   "); with --merge a model of its own is exported"));
}

// "self_attn.q_proj" of "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", with what
// stands before it; empty: it is none of a layer of the Llama family.
std::pair<std::string, std::string> MlxName(absl::string_view name) {
  constexpr absl::string_view kLayers = "base_model.model.model.layers.";
  if (!absl::ConsumePrefix(&name, kLayers)) return {};
  const size_t dot = name.find('.');
  const absl::string_view layer = name.substr(0, dot);
  absl::string_view rest = name.substr(dot + 1);
  const bool is_a = absl::ConsumeSuffix(&rest, ".lora_A.weight");
  if (!is_a) absl::ConsumeSuffix(&rest, ".lora_B.weight");
  return {absl::StrCat("model.layers.", layer, ".", rest, is_a ? ".lora_a" : ".lora_b"),
          std::string(rest)};
}

// MLX has A and B turned: x a b.
absl::StatusOr<std::vector<ExportedTensor>> MlxTensors(const Safetensors& file,
                                                       std::vector<std::string>& keys) {
  std::vector<ExportedTensor> tensors;
  for (const TensorView& tensor : file.tensors()) {
    const auto [name, key] = MlxName(tensor.spec.name);
    if (name.empty() || tensor.spec.shape.size() != 2 || tensor.spec.type != TensorType::kF32) {
      return absl::UnimplementedError(
          absl::StrCat("tensor ", tensor.spec.name,
                       " has no name in MLX's layout that is known here; supported are adapters in "
                       "fp32 of Llama, Mistral and Qwen"));
    }
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    const std::vector<int64_t> shape = tensor.spec.shape;
    tensors.push_back({name, {shape[1], shape[0]}, [bytes = tensor.bytes, shape] {
                         torch::Tensor value = torch::empty(shape);
                         std::memcpy(value.data_ptr(), bytes.data(), bytes.size());
                         return value.t().contiguous();
                       }});
  }
  return tensors;
}

}  // namespace

absl::StatusOr<Exported> ExportModel(const ExportOptions& options) {
  ASSIGN_OR_RETURN(ExportFolder folder, ExportFolder::Begin(PosixFileSystem(), options.output));
  ASSIGN_OR_RETURN(const ExportSource source, OpenExportSource(options.from));
  const std::string& base = source.base;
  const PretrainedModel& model = source.model;
  const torch::ScalarType type = options.type.value_or(source.stored_type);
  std::vector<ExportedTensor> tensors;
  Exported exported{.base = base};
  for (const Parameter& parameter : model.parameters.all()) {
    if (parameter.shape.is_adapter()) continue;
    exported.parameters += parameter.size;
    tensors.push_back({parameter.shape.name, parameter.shape.shape,
                       [&] { return MergedValue(model.config, model.parameters, parameter); }});
  }
  RETURN_IF_ERROR(folder.WriteTensors("model", tensors, type, options.shard_bytes));
  const std::string config_of = base.empty() ? options.from : base;
  RETURN_IF_ERROR(folder.WriteText("config.json", ConfigJson(config_of, model.config, type)));
  RETURN_IF_ERROR(CopyFilesBeside(base, options.from, folder));
  RETURN_IF_ERROR(folder.WriteText(
      "README.md", ModelCard(options, base, model.parameters.lora(), "transformers")));
  RETURN_IF_ERROR(folder.Publish());
  exported.bytes = folder.bytes();
  exported.weight_files = folder.weight_files();
  return exported;
}

namespace {

// What both forms of adapters have; `write` writes the form.
absl::StatusOr<Exported> ExportAdapter(
    const ExportOptions& options, absl::string_view library,
    const std::function<absl::Status(const Safetensors&, const LoraConfig&, const std::string& base,
                                     ExportFolder&)>& write) {
  RETURN_IF_ERROR(CheckIsAdapter(options.from));
  RETURN_IF_ERROR(CheckIfCheckpoint(PosixFileSystem(), options.from));
  ASSIGN_OR_RETURN(const LoraConfig lora, ReadLoraConfig(options.from));
  ASSIGN_OR_RETURN(const Safetensors file,
                   Safetensors::Open(JoinPath(options.from, kAdapterModelName)));
  ASSIGN_OR_RETURN(const std::string base, BaseFolder(options.from));
  ASSIGN_OR_RETURN(ExportFolder folder, ExportFolder::Begin(PosixFileSystem(), options.output));
  RETURN_IF_ERROR(write(file, lora, base, folder));
  RETURN_IF_ERROR(CopyFilesBeside(base, options.from, folder));
  RETURN_IF_ERROR(folder.WriteText("README.md", ModelCard(options, base, lora, library)));
  RETURN_IF_ERROR(folder.Publish());
  Exported exported{.base = base};
  for (const TensorView& tensor : file.tensors()) {
    exported.bytes += static_cast<int64_t>(tensor.bytes.size());
    exported.parameters +=
        static_cast<int64_t>(tensor.bytes.size()) / TensorTypeBytes(tensor.spec.type);
  }
  exported.weight_files = 1;
  return exported;
}

}  // namespace

absl::StatusOr<Exported> ExportPeftAdapter(const ExportOptions& options) {
  const auto write = [&](const Safetensors&, const LoraConfig&, const std::string&,
                         ExportFolder& folder) -> absl::Status {
    RETURN_IF_ERROR(folder.CopyText(kAdapterConfigName, {options.from}));
    return folder.CopyFile(kAdapterModelName, options.from);
  };
  return ExportAdapter(options, "peft", write);
}

absl::StatusOr<Exported> ExportMlxAdapter(const ExportOptions& options) {
  const auto write = [&](const Safetensors& file, const LoraConfig& lora, const std::string& base,
                         ExportFolder& folder) -> absl::Status {
    std::vector<std::string> keys;
    ASSIGN_OR_RETURN(const std::vector<ExportedTensor> tensors, MlxTensors(file, keys));
    ASSIGN_OR_RETURN(const DecoderConfig config,
                     ReadModelConfig(base.empty() ? options.from : base));
    const json about = {{"fine_tune_type", "lora"},
                        {"model", base},
                        {"num_layers", config.layers},
                        {"lora_parameters",
                         {{"rank", lora.rank},
                          {"scale", lora.scale()},
                          {"dropout", lora.dropout},
                          {"keys", keys}}}};
    RETURN_IF_ERROR(folder.WriteText(kAdapterConfigName, about.dump(2) + "\n"));
    return folder.WriteTensors("adapters", tensors, torch::kFloat, options.shard_bytes);
  };
  return ExportAdapter(options, "mlx", write);
}

}  // namespace espalier
