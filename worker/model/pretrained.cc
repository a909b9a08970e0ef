#include "worker/model/pretrained.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/config/model_preset.h"
#include "worker/formats/json_fields.h"
#include "worker/formats/safetensors.h"
#include "worker/model/adapter_files.h"
#include "worker/model/copy_tensor.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

constexpr int64_t kJsonLimitBytes = int64_t{64} << 20;
// Of a checkpoint with frozen parameters (worker/state/checkpoint.h).
constexpr char kTrainedName[] = "trained.safetensors";
constexpr char kBaseName[] = "base.json";
constexpr int kMostBases = 8;

absl::Status Named(const absl::Status& status, absl::string_view path) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

absl::StatusOr<std::set<std::string>> ShardNames(const std::string& index_path) {
  ASSIGN_OR_RETURN(const std::string text, PosixFileSystem().Read(index_path, kJsonLimitBytes));
  const auto parsed = ParseJsonObject(text);
  const nlohmann::json& json = parsed.ok() ? *parsed : nlohmann::json();
  if (!json.contains("weight_map") || !json["weight_map"].is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, " has no weight_map object; is the file whole?"));
  }
  std::set<std::string> names;
  for (const auto& file : json["weight_map"]) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || absl::StrContains(name, '/') || absl::StrContains(name, '\\')) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, ": ", file.dump().substr(0, 80),
                                                     " is not the name of a file beside it"));
    }
    names.insert(name);
  }
  return names;
}

// All weight files of a folder as one set of tensors.
class WeightFiles {
 public:
  static absl::StatusOr<WeightFiles> Open(const std::string& folder) {
    std::set<std::string> names = {"model.safetensors"};
    ASSIGN_OR_RETURN(const std::vector<std::string> present, PosixFileSystem().List(folder));
    const std::set<std::string> there(present.begin(), present.end());
    if (there.count("model.safetensors") == 0) {
      if (there.count("model.safetensors.index.json") == 0) {
        return absl::NotFoundError(absl::StrCat(
            folder,
            " has neither model.safetensors nor model.safetensors.index.json; convert the "
            "weights to safetensors (save_pretrained of transformers writes them)"));
      }
      ASSIGN_OR_RETURN(names, ShardNames(absl::StrCat(folder, "/model.safetensors.index.json")));
    }
    WeightFiles files;
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(Safetensors file, Safetensors::Open(absl::StrCat(folder, "/", name)));
      files.files_.push_back(std::move(file));
    }
    for (const Safetensors& file : files.files_) {
      for (const TensorView& tensor : file.tensors()) {
        if (files.tensors_.emplace(tensor.spec.name, Entry{&file, &tensor}).second) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(folder, " holds tensor ", tensor.spec.name,
                         " in two of the files that model.safetensors.index.json names; one of "
                         "them is of another model or another time: fetch the folder anew"));
      }
    }
    return files;
  }

  struct Entry {
    const Safetensors* file;
    const TensorView* tensor;
  };
  const std::map<std::string, Entry>& tensors() const { return tensors_; }

 private:
  std::vector<Safetensors> files_;
  std::map<std::string, Entry> tensors_;
};

// What files carry besides parameters: buffers of old versions, and the head where it is tied.
bool MayBeIgnored(absl::string_view name, const DecoderConfig& config) {
  if (config.tie_word_embeddings && name == kHeadName) return true;
  if (config.architecture == Architecture::kLlama) {
    return absl::EndsWith(name, ".rotary_emb.inv_freq");
  }
  if (config.architecture == Architecture::kTrm) return false;
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias");
}

// Files of the class without a head, such as GPT-2's own, leave the first word of names out.
absl::string_view NameWithoutHead(absl::string_view name) {
  for (const absl::string_view base : {"model.", "transformer."}) {
    if (absl::ConsumePrefix(&name, base)) return name;
  }
  return name;
}

const WeightFiles::Entry* Find(const WeightFiles& files, absl::string_view name) {
  for (const absl::string_view one : {name, NameWithoutHead(name)}) {
    const auto it = files.tensors().find(std::string(one));
    if (it != files.tensors().end()) return &it->second;
  }
  return nullptr;
}

bool IsOf(const Parameters& parameters, const std::string& name) {
  return parameters.Find(name) != nullptr ||
         std::any_of(parameters.all().begin(), parameters.all().end(),
                     [&](const Parameter& one) { return NameWithoutHead(one.shape.name) == name; });
}

absl::Status Fill(const WeightFiles& files, const DecoderConfig& config, Parameters& parameters) {
  size_t used = 0;
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.shape.is_adapter()) continue;
    const WeightFiles::Entry* const found = Find(files, parameter.shape.name);
    if (found == nullptr) {
      return absl::NotFoundError(absl::StrCat("the weights have no tensor ", parameter.shape.name,
                                              ", which config.json asks for"));
    }
    RETURN_IF_ERROR(CopyTensor(*found->file, *found->tensor, parameter));
    ++used;
  }
  if (used == files.tensors().size()) return absl::OkStatus();
  for (const auto& [name, tensor] : files.tensors()) {
    if (IsOf(parameters, name) || MayBeIgnored(name, config)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the weights hold tensor ", name,
                     ", for which the model of config.json has no place; loading without it would "
                     "give another model"));
  }
  return absl::OkStatus();
}

// Tensors of a folder whose other parameters are those of a base.
absl::Status Overlay(const std::string& folder, Parameters& parameters) {
  ASSIGN_OR_RETURN(const Safetensors file, Safetensors::Open(JoinPath(folder, kTrainedName)));
  for (const TensorView& tensor : file.tensors()) {
    const Parameter* parameter = parameters.Find(tensor.spec.name);
    if (parameter == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor.spec.name, " has no place in the model of config.json"));
    }
    RETURN_IF_ERROR(CopyTensor(file, tensor, *parameter));
  }
  return absl::OkStatus();
}

absl::Status LoadWithBase(const std::string& folder, const DecoderConfig& config, int depth,
                          Parameters& parameters);

// base.json: {"model": FOLDER}, or {"seed": N, "initializer_range": X} for initial weights.
absl::Status LoadBase(const std::string& text, const DecoderConfig& config, int depth,
                      Parameters& parameters) {
  const auto base = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (base.is_object() && base.contains("model") && base["model"].is_string()) {
    return LoadWithBase(base["model"].get<std::string>(), config, depth + 1, parameters);
  }
  const bool seeded = base.is_object() && base.contains("seed") &&
                      base["seed"].is_number_unsigned() && base.contains("initializer_range") &&
                      base["initializer_range"].is_number();
  if (!seeded) {
    return absl::InvalidArgumentError(
        absl::StrCat(kBaseName, " names neither a model nor a seed with initializer_range"));
  }
  return CatchTorch("setting the initial weights", [&] {
    parameters.Initialize(base["seed"].get<uint64_t>(), base["initializer_range"].get<double>());
  });
}

// What a folder of adapters rests on, and the adapters.
absl::Status LoadAdapted(const std::string& folder, const std::string& base,
                         const DecoderConfig& config, int depth, Parameters& parameters) {
  if (!parameters.lora()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder,
                     " holds an adapter, not a model; take its base, with the adapter "
                     "beside it, or merge the two (espalier export --merge)"));
  }
  absl::Status status = LoadBase(base, config, depth, parameters);
  if (status.ok()) status = LoadAdapter(folder, parameters);
  return status.ok() ? status : Named(status, folder);
}

absl::Status LoadWithBase(const std::string& folder, const DecoderConfig& config, int depth,
                          Parameters& parameters) {
  if (depth > kMostBases) {
    return absl::InvalidArgumentError(absl::StrCat(folder, " rests on more than ", kMostBases,
                                                   " models, one on the other; is it its own?"));
  }
  const absl::StatusOr<std::string> base =
      PosixFileSystem().Read(JoinPath(folder, kBaseName), kJsonLimitBytes);
  if (base.ok() && HoldsAdapter(folder)) {
    return LoadAdapted(folder, *base, config, depth, parameters);
  }
  if (base.ok()) {
    absl::Status status = LoadBase(*base, config, depth, parameters);
    if (status.ok()) status = Overlay(folder, parameters);
    return status.ok() ? status : Named(status, folder);
  }
  if (!absl::IsNotFound(base.status())) return base.status();
  ASSIGN_OR_RETURN(const WeightFiles files, WeightFiles::Open(folder));
  const absl::Status status = Fill(files, config, parameters);
  if (!status.ok()) return Named(status, folder);
  const bool adapted = depth == 0 && parameters.lora() && HoldsAdapter(folder);
  return adapted ? LoadAdapter(folder, parameters) : absl::OkStatus();  // beside the weights
}

// The folder and those that it rests on, one on the other; the last one is empty where that is
// initial values.
absl::StatusOr<std::vector<std::string>> Bases(const std::string& folder) {
  std::vector<std::string> bases = {folder};
  while (bases.size() <= kMostBases + 1) {
    const auto text = PosixFileSystem().Read(JoinPath(bases.back(), kBaseName), kJsonLimitBytes);
    if (absl::IsNotFound(text.status())) return bases;
    if (!text.ok()) return text.status();
    const auto base = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    const bool model = base.is_object() && base.contains("model") && base["model"].is_string();
    bases.push_back(model ? base["model"].get<std::string>() : "");
    if (!model) return bases;
  }
  return absl::InvalidArgumentError(absl::StrCat(folder, " rests on more than ", kMostBases,
                                                 " models, one on the other; is it its own?"));
}

// That of the file's embedding, or fp32 where that is wider.
absl::StatusOr<torch::ScalarType> EmbeddingType(const std::string& folder,
                                                const DecoderConfig& config) {
  const absl::StatusOr<WeightFiles> files = WeightFiles::Open(folder);
  if (!files.ok()) return torch::kFloat;  // whoever loads it says why
  const WeightFiles::Entry* const table = Find(*files, EmbeddingName(config));
  if (table == nullptr) return torch::kFloat;
  ASSIGN_OR_RETURN(const torch::ScalarType type, ScalarType(table->tensor->spec));
  return type == torch::kDouble ? torch::kFloat : type;
}

// Places that see each other are all part of a question: a model that was trained on shorter rows
// would answer longer ones that it has never seen.
absl::Status CheckRows(const DecoderConfig& config, int64_t length) {
  if (!config.recursion || config.recursion->causal || config.max_position_embeddings == length) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "data.sequence_length is ", length, " and the model answers rows of ",
      config.max_position_embeddings,
      " places (model.max_position_embeddings), which see each other; set both to the tokens of a "
      "puzzle"));
}

}  // namespace

absl::StatusOr<DecoderConfig> ReadModelConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/config.json");
  ASSIGN_OR_RETURN(const std::string text, PosixFileSystem().Read(path, kJsonLimitBytes));
  absl::StatusOr<DecoderConfig> config = DecoderConfigFromJson(text);
  if (!config.ok()) return Named(config.status(), folder);
  const absl::StatusOr<std::string> generation =
      PosixFileSystem().Read(absl::StrCat(folder, "/generation_config.json"), kJsonLimitBytes);
  if (absl::IsNotFound(generation.status())) return config;
  RETURN_IF_ERROR(generation.status());
  const absl::Status added = AddGenerationConfig(*generation, *config);
  if (!added.ok()) return Named(added, folder);
  return config;
}

absl::StatusOr<DecoderConfig> JobModelConfig(const v1::JobSpec& spec, int64_t data_vocab_size) {
  const v1::ModelSpec& model = spec.model();
  const int64_t length = spec.data().sequence_length();
  if (HoldsAdapter(model.from())) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.from is ", model.from(),
                     ", which holds an adapter; give model.from the model that it "
                     "adapts and train.lora.from this folder, or merge the two first (espalier "
                     "export --merge)"));
  }
  if (!model.has_from()) {
    ASSIGN_OR_RETURN(DecoderConfig config, DecoderConfigFromSpec(model, data_vocab_size));
    if (!ResolveModel(model).has_max_position_embeddings()) {
      config.max_position_embeddings = std::max(config.max_position_embeddings, length);
    }
    RETURN_IF_ERROR(CheckRows(config, length));
    return config;
  }
  ASSIGN_OR_RETURN(DecoderConfig config, ReadModelConfig(model.from()));
  if (config.vocab_size < data_vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model ", model.from(), " has ", config.vocab_size, " token ids and the data has ",
        data_vocab_size, "; prepare the data with the model's tokenizer"));
  }
  if (config.max_position_embeddings < length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.sequence_length is ", length, " and model ", model.from(), " is made for ",
        config.max_position_embeddings,
        " positions; shorten the sequences, or "
        "raise max_position_embeddings in its config.json if it is to learn longer ones"));
  }
  RETURN_IF_ERROR(CheckRows(config, length));
  return config;
}

absl::Status LoadWeights(const std::string& folder, const DecoderConfig& config,
                         Parameters& parameters) {
  RETURN_IF_ERROR(LoadWithBase(folder, config, /*depth=*/0, parameters));
  return CatchTorch("narrowing the weights", [&] { parameters.RefreshCopy(); });
}

absl::StatusOr<std::string> BaseFolder(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> bases, Bases(folder));
  return bases.size() == 1 ? std::string() : bases.back();
}

absl::StatusOr<std::set<std::string>> TrainedAboveBase(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> bases, Bases(folder));
  std::set<std::string> names;
  for (size_t i = 0; i + 1 < bases.size(); ++i) {
    if (bases[i].empty() || HoldsAdapter(bases[i])) continue;
    ASSIGN_OR_RETURN(const Safetensors file, Safetensors::Open(JoinPath(bases[i], kTrainedName)));
    for (const TensorView& tensor : file.tensors()) names.insert(tensor.spec.name);
  }
  return names;
}

absl::StatusOr<torch::ScalarType> StoredType(const std::string& folder) {
  ASSIGN_OR_RETURN(const DecoderConfig config, ReadModelConfig(folder));
  return EmbeddingType(folder, config);
}

absl::StatusOr<PretrainedModel> LoadPretrained(const std::string& folder,
                                               Parameters::Options options,
                                               const std::string& adapter) {
  ASSIGN_OR_RETURN(const DecoderConfig config, ReadModelConfig(folder));
  ASSIGN_OR_RETURN(const std::string base, BaseFolder(folder));
  ASSIGN_OR_RETURN(options.frozen_embedding_type,
                   EmbeddingType(base.empty() ? folder : base, config));
  ASSIGN_OR_RETURN(const std::set<std::string> above, TrainedAboveBase(folder));
  if (above.count(EmbeddingName(config)) > 0) options.frozen_embedding_type = torch::kFloat;
  if (HoldsAdapter(folder) && !adapter.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, " has an adapter of its own; merge it first (espalier export --merge), or leave ",
        adapter, " out"));
  }
  const std::string adapted = adapter.empty() ? folder : adapter;
  if (!adapter.empty() || HoldsAdapter(folder)) {
    ASSIGN_OR_RETURN(options.lora, ReadLoraConfig(adapted));
    RETURN_IF_ERROR(CheckLoraTargets(config, *options.lora, LoraTargetsFound::kSome));
  }
  ASSIGN_OR_RETURN(Parameters parameters, Parameters::Create(config, options));
  RETURN_IF_ERROR(LoadWeights(folder, config, parameters));
  if (!adapter.empty()) RETURN_IF_ERROR(LoadAdapter(adapter, parameters));
  return PretrainedModel{config, std::move(parameters)};
}

}  // namespace espalier
