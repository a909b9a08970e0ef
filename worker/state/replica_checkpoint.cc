#include "worker/state/replica_checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

struct Digest {
  uint64_t spec = 0;
  uint64_t architecture = 0;
  uint64_t adapters = 0;
  std::array<char, 64> data{};
  std::array<char, 32> version{};
};

template <size_t N>
void CopyText(const std::string& text, std::array<char, N>& out) {
  std::memcpy(out.data(), text.data(), std::min(text.size(), N));
}

// FNV-1a.
uint64_t Hash(absl::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}

std::string LastPart(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// The parts of a spec that decide what is computed, not where it lies on a node. Its bytes are the
// same in two processes of one program.
uint64_t HashSpec(v1::JobSpec spec) {
  spec.mutable_data()->clear_path();
  spec.mutable_model()->clear_from();
  spec.mutable_checkpoint()->clear_directory();
  if (spec.train().has_lora()) spec.mutable_train()->mutable_lora()->clear_from();
  if (spec.train().has_verifier()) {
    v1::VerifierSpec& verifier = *spec.mutable_train()->mutable_verifier();
    verifier.clear_folder();
    verifier.clear_words();
    verifier.clear_secrets();
    if (verifier.command_size() > 0) verifier.set_command(0, LastPart(verifier.command(0)));
  }
  spec.clear_launch();
  return Hash(spec.SerializeAsString());
}

absl::Status Differs(size_t rank, absl::string_view what, absl::string_view remedy) {
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", rank, " and rank 0 have different ", what, "; ", remedy));
}

}  // namespace

absl::Status CheckSameRun(const RankContext& context, const RunIdentity& identity) {
  Digest mine;
  mine.spec = HashSpec(identity.spec);
  mine.architecture = Hash(absl::StrCat(identity.architecture, identity.ends));
  mine.adapters = Hash(identity.adapters);
  CopyText(identity.data_hash, mine.data);
  CopyText(ESPALIER_VERSION, mine.version);
  ASSIGN_OR_RETURN(const std::vector<Digest> all, GatherValues(context.collective, mine));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].version != all[0].version) {
      return Differs(rank, "versions of espalier-worker", "install the same one on all nodes");
    }
    if (all[rank].spec != all[0].spec) {
      return Differs(rank, "jobs", "give every rank the same job file");
    }
    if (all[rank].data != all[0].data) {
      return Differs(rank, "data",
                     "copy the prepared folder (data.path) of one node to the others, or run "
                     "`espalier data prepare` with the same files and options everywhere");
    }
    if (all[rank].architecture != all[0].architecture) {
      return Differs(rank, "architectures",
                     "copy the folder of model.from from one node to the others");
    }
    if (all[rank].adapters != all[0].adapters) {
      return Differs(rank, "adapters",
                     "copy the folder of train.lora.from from one node to the others");
    }
  }
  return absl::OkStatus();
}

namespace {

using nlohmann::json;

constexpr char kResidual[] = "gradient_residual.";
constexpr char kValue[] = "value.";  // where the model's are averages
constexpr const char* kSlotParts[] = {"slots.records", "slots.numbers"};

// Where a job's model lies, as it was given when that cannot be told.
std::string BaseFolder(const v1::JobSpec& spec) {
  std::error_code error;
  const auto path = std::filesystem::absolute(spec.model().from(), error);
  return error ? spec.model().from() : path.string();
}

// What the frozen parameters are: those of a model, or initial ones.
std::string BaseJson(const v1::JobSpec& spec, const DecoderConfig& config) {
  if (spec.model().has_from()) {
    return json{{"model", BaseFolder(spec)}}.dump(2) + "\n";
  }
  const json base = {{"seed", spec.train().seed()},
                     {"initializer_range", config.initializer_range}};
  return base.dump(2) + "\n";
}

std::string GenerationConfigJson(const DecoderConfig& config) {
  if (config.eos_token_ids.empty()) return "";
  json generation = {{"eos_token_id", config.eos_token_ids.front()}};
  if (config.eos_token_ids.size() > 1) generation["eos_token_id"] = config.eos_token_ids;
  if (config.bos_token_id) generation["bos_token_id"] = *config.bos_token_id;
  return generation.dump(2) + "\n";
}

TensorType TypeOf(const torch::Tensor& tensor) {
  if (tensor.scalar_type() == torch::kChar) return TensorType::kI8;
  if (tensor.scalar_type() == torch::kByte) return TensorType::kU8;
  return TensorType::kF32;
}

// `prefix` before the parameter's name, with the type and shape of `values`.
TensorSpec SpecOf(absl::string_view prefix, const Parameter& parameter,
                  const torch::Tensor& values) {
  return {absl::StrCat(prefix, parameter.shape.name), TypeOf(values), values.sizes().vec()};
}

absl::Span<std::byte> BytesOf(const torch::Tensor& host) {
  return {static_cast<std::byte*>(host.data_ptr()), host.nbytes()};
}

// Into a tensor on any device.
absl::Status LoadPart(const Safetensors& file, absl::string_view prefix, const Parameter& parameter,
                      torch::Tensor values) {
  const bool here = values.is_cpu();
  torch::Tensor host = here ? values : torch::empty(values.sizes(), values.dtype());
  RETURN_IF_ERROR(LoadTensor(file, SpecOf(prefix, parameter, values), BytesOf(host)));
  torch::NoGradGuard no_grad;
  if (!here) values.copy_(host);
  return absl::OkStatus();
}

bool HoldsMoments8(const Safetensors& file, const Parameter& parameter) {
  const TensorView* first = file.Find(absl::StrCat(Moments::kFirstPrefix, parameter.shape.name));
  return first != nullptr && first->spec.type == TensorType::kI8;
}

// Of one kind from a checkpoint of either.
absl::Status LoadMoments(const Safetensors& file, const Moments& moments, size_t index,
                         const Parameter& parameter) {
  const std::vector<Moments::Part> parts = moments.PartsOf(index);
  if (HoldsMoments8(file, parameter) == moments.in_8_bits()) {
    for (const Moments::Part& part : parts) {
      RETURN_IF_ERROR(LoadPart(file, part.prefix, parameter, part.values));
    }
    return absl::OkStatus();
  }
  const std::vector<Moments::Part> other = moments.PartsOfTheOtherKind(index);
  for (const Moments::Part& part : other) {
    RETURN_IF_ERROR(LoadPart(file, part.prefix, parameter, part.values));
  }
  const std::vector<Moments::Part> converted = moments.FromTheOtherKind(other);
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < parts.size(); ++i) {
    torch::Tensor(parts[i].values).copy_(converted[i].values);
  }
  return absl::OkStatus();
}

// Undefined where there is no average.
torch::Tensor AverageOf(Replica& replica, const Parameter& parameter) {
  const FlatTensor& average = replica.optimizer().average();
  if (!average.defined()) return torch::Tensor();
  return average.Slice(parameter.offset, parameter.size).view(parameter.shape.shape);
}

// Values, and their average. A run that begins to average begins with what the values are.
absl::Status LoadValues(const Checkpoint& checkpoint, const Parameter& parameter,
                        const torch::Tensor& average) {
  const bool held =
      checkpoint.optimizer().Find(absl::StrCat(kValue, parameter.shape.name)) != nullptr;
  RETURN_IF_ERROR(held ? LoadPart(checkpoint.optimizer(), kValue, parameter, parameter.value)
                       : LoadPart(checkpoint.model(), "", parameter, parameter.value));
  return average.defined() ? LoadPart(checkpoint.model(), "", parameter, average)
                           : absl::OkStatus();
}

// Undefined for lookups, which travel otherwise.
torch::Tensor ResidualOf(Replica& replica, const Parameter& parameter) {
  const torch::Tensor& values = replica.residual().values();
  if (parameter.offset >= values.numel()) return torch::Tensor();
  return values.narrow(0, parameter.offset, parameter.size).view(parameter.shape.shape);
}

// A checkpoint of a run that kept none owes nothing; a run that keeps none forgets what was owed.
absl::Status LoadResidual(const Safetensors& file, Replica& replica) {
  GradientResidual& residual = replica.residual();
  if (!residual.kept()) return absl::OkStatus();
  RETURN_IF_ERROR(residual.Keep(replica.parameters().elements_before_embedding()));
  for (const Parameter& parameter : replica.parameters().trained()) {
    const torch::Tensor part = ResidualOf(replica, parameter);
    if (!part.defined()) continue;
    const absl::Status loaded = LoadPart(file, kResidual, parameter, part);
    if (absl::IsNotFound(loaded)) return absl::OkStatus();
    RETURN_IF_ERROR(loaded);
  }
  return absl::OkStatus();
}

TensorSpec SlotSpec(size_t part, const torch::Tensor& values) {
  return {kSlotParts[part], TypeOf(values), values.sizes().vec()};
}

// Of a run that keeps them. One that goes on from another's weights alone begins with none.
absl::Status LoadSlots(const Safetensors& file, Step step, SlotStates& slots) {
  if (!slots.kept()) return absl::OkStatus();
  slots.Reset();
  const std::vector<torch::Tensor> parts = slots.PartsOf(step);
  for (size_t i = 0; i < parts.size(); ++i) {
    RETURN_IF_ERROR(LoadTensor(file, SlotSpec(i, parts[i]), BytesOf(parts[i])));
  }
  return absl::OkStatus();
}

// Models of equal shapes may compute other functions: heads, angles, windows.
absl::Status CheckArchitecture(const Checkpoint& checkpoint, const DecoderConfig& config) {
  ASSIGN_OR_RETURN(const std::string text, checkpoint.Text("config.json"));
  ASSIGN_OR_RETURN(const DecoderConfig saved, DecoderConfigFromJson(text));
  const json was = json::parse(ArchitectureJson(saved), nullptr, /*allow_exceptions=*/false);
  const json is = json::parse(ArchitectureJson(config), nullptr, /*allow_exceptions=*/false);
  for (const auto& [key, value] : is.items()) {
    // Where a job left it out, it follows the sequences; it decides angles by rope_scaling alone.
    const bool free = key == "max_position_embeddings" && !config.rope_scaling;
    if (free || (was.contains(key) && was[key] == value)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint ", checkpoint.folder(), " is of a model with ", key, " ",
        was.contains(key) ? was[key].dump() : "absent", " and the job's has ", value.dump(),
        "; give the job the model that it was made with, or another checkpoint.directory"));
  }
  return absl::OkStatus();
}

// Adapters of equal shapes may add different multiples.
absl::Status CheckAdapters(const Checkpoint& checkpoint, const std::optional<LoraConfig>& lora) {
  if (!lora) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, checkpoint.Text(kAdapterConfigName));
  ASSIGN_OR_RETURN(const LoraConfig saved, LoraConfigFromJson(text));
  if (saved.ComputesAs(*lora)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint ", checkpoint.folder(), " holds adapters of rank ", saved.rank, " that add ",
      saved.scale(), " times what they make, and the job's, of rank ", lora->rank, ", add ",
      lora->scale(), " times; give the job the train.lora that it was made with, or another ",
      "checkpoint.directory"));
}

// A checkpoint of a run that trained other parameters holds others.
absl::Status CheckTrained(const Checkpoint& checkpoint, absl::Span<const Parameter> trained) {
  const size_t held = checkpoint.model().tensors().size();
  const bool same = held == trained.size() &&
                    std::all_of(trained.begin(), trained.end(), [&](const Parameter& parameter) {
                      return checkpoint.model().Find(parameter.shape.name) != nullptr;
                    });
  if (same) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint ", checkpoint.folder(), " holds ", held,
                   " trained parameters and the job trains ", trained.size(),
                   "; give the job the model, the train.freeze and the train.lora that it "
                   "was made with, or another checkpoint.directory"));
}

}  // namespace

CheckpointContent ContentOf(Replica& replica, const RunIdentity& identity,
                            std::optional<double> validation_loss) {
  CheckpointContent content;
  content.step = replica.step();
  const auto on_host = std::make_shared<torch::Tensor>();  // of the tensor being written
  const auto add = [&](absl::string_view prefix, const Parameter& parameter,
                       const torch::Tensor& values, std::vector<NamedTensor>& to) {
    const auto read = [on_host, values]() -> absl::StatusOr<absl::Span<const std::byte>> {
      RETURN_IF_ERROR(
          CatchTorch("copying the state to the host", [&] { *on_host = values.detach().cpu(); }));
      return BytesOf(*on_host);
    };
    to.push_back({SpecOf(prefix, parameter, values), read});
  };
  const absl::Span<const Parameter> parameters = replica.parameters().trained();
  const bool kept = replica.residual().kept();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const torch::Tensor average = AverageOf(replica, parameter);
    add("", parameter, average.defined() ? average : parameter.value, content.model);
    if (average.defined()) add(kValue, parameter, parameter.value, content.optimizer);
    for (const Moments::Part& part : replica.optimizer().moments().PartsOf(i)) {
      add(part.prefix, parameter, part.values, content.optimizer);
    }
    const torch::Tensor residual = kept ? ResidualOf(replica, parameter) : torch::Tensor();
    if (residual.defined()) add(kResidual, parameter, residual, content.optimizer);
  }
  const std::vector<torch::Tensor> slots = replica.slots().kept()
                                               ? replica.slots().PartsOf(replica.step())
                                               : std::vector<torch::Tensor>();
  for (size_t i = 0; i < slots.size(); ++i) {
    content.optimizer.push_back(
        {SlotSpec(i, slots[i]), [part = slots[i]]() -> absl::StatusOr<absl::Span<const std::byte>> {
           return BytesOf(part);
         }});
  }
  content.config_json = DecoderConfigToJson(replica.config());
  content.generation_config_json = GenerationConfigJson(replica.config());
  content.tokenizer_json = identity.tokenizer_json;
  content.tokenizer_config_json = identity.tokenizer_config_json;
  content.trainer_state_json = TrainerStateJson(replica, identity);
  if (replica.has_frozen()) {
    content.base_json = BaseJson(identity.spec, replica.config());
  }
  if (const auto& lora = replica.parameters().lora()) {
    content.adapter_config_json = AdapterConfigToJson(
        *lora, {.base = identity.spec.model().has_from() ? BaseFolder(identity.spec) : "",
                .targets = LoraTargets(replica.config(), *lora),
                .weights_are_in_out = replica.config().architecture == Architecture::kGpt2});
  }
  content.validation_loss = validation_loss;
  return content;
}

absl::Status LoadReplica(const Checkpoint& checkpoint, const RunIdentity& identity,
                         Replica& replica) {
  ASSIGN_OR_RETURN(const TrainerState state, ReadTrainerState(checkpoint, identity));
  const absl::Span<const Parameter> parameters = replica.parameters().trained();
  RETURN_IF_ERROR(CheckArchitecture(checkpoint, replica.config()));
  RETURN_IF_ERROR(CheckTrained(checkpoint, parameters));
  RETURN_IF_ERROR(CheckAdapters(checkpoint, replica.parameters().lora()));
  RETURN_IF_ERROR(CheckFrozen(checkpoint, replica));
  for (size_t i = 0; i < parameters.size(); ++i) {
    RETURN_IF_ERROR(LoadValues(checkpoint, parameters[i], AverageOf(replica, parameters[i])));
    RETURN_IF_ERROR(
        LoadMoments(checkpoint.optimizer(), replica.optimizer().moments(), i, parameters[i]));
  }
  RETURN_IF_ERROR(LoadResidual(checkpoint.optimizer(), replica));
  RETURN_IF_ERROR(LoadSlots(checkpoint.optimizer(), Step(state.counters.step), replica.slots()));
  replica.residual().Rescale(state.counters.loss_scale.value() / state.saved_scale.value());
  const auto kind = [](bool in_8_bits) { return in_8_bits ? "int8" : "fp32"; };
  const bool in_8_bits = replica.optimizer().moments().in_8_bits();
  const bool were = HoldsMoments8(checkpoint.optimizer(), parameters[0]);
  if (were != in_8_bits) {
    LogInfo(absl::StrCat("moments go on in ", kind(in_8_bits), "; the checkpoint has them in ",
                         kind(were)));
  }
  replica.counters() = state.counters;
  replica.optimizer().set_updates(state.counters.updates);
  return CatchTorch("narrowing the weights", [&] { replica.parameters().RefreshCopy(); });
}

}  // namespace espalier
