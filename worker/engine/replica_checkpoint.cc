#include "worker/engine/replica_checkpoint.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/engine/json_fields.h"
#include "worker/model/torch_compat.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr int64_t kStateFormat = 1;
constexpr char kFirstMoment[] = "exp_avg.";
constexpr char kSecondMoment[] = "exp_avg_sq.";
constexpr char kResidual[] = "gradient_residual.";

json SpecJson(const v1::JobSpec& spec) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(spec, &text, options).ok()) return json();
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// Everything on which the samples of a step depend.
json OrderJson(const RunIdentity& identity) {
  return {{"data_sha256", identity.data_hash},
          {"sequence_length", identity.spec.data().sequence_length()},
          {"seed", identity.spec.data().seed()},
          {"global_batch", identity.spec.train().global_batch()}};
}

json LossScaleJson(const LossScale& scale) {
  return {{"exponent", scale.exponent}, {"finite_in_a_row", scale.finite_in_a_row}};
}

// A run that begins to scale its losses, or a checkpoint from before there was a scale: a new one.
absl::StatusOr<LossScale> LoadLossScale(const json& state, const RunIdentity& identity) {
  LossScale scale = LossScale::For(identity.spec.train().precision());
  if (!scale.dynamic || !state.contains("loss_scale")) return scale;
  ASSIGN_OR_RETURN(const json* saved, ObjectField(state, "loss_scale"));
  ASSIGN_OR_RETURN(const int64_t exponent, IntegerField(*saved, "exponent"));
  scale.exponent = std::min(exponent, LossScale::kLastExponent);
  ASSIGN_OR_RETURN(scale.finite_in_a_row, IntegerField(*saved, "finite_in_a_row"));
  return scale;
}

std::string StateJson(const TrainingCounters& counters, const RunIdentity& identity) {
  const int64_t used = counters.step * identity.spec.train().global_batch();
  json state = {{"format", kStateFormat},
                {"version", ESPALIER_VERSION},
                {"step", counters.step},
                {"optimizer_updates", counters.updates},
                {"skipped_steps", counters.skipped},
                {"skipped_steps_in_a_row", counters.skipped_in_a_row},
                {"loss_scale", LossScaleJson(counters.loss_scale)},
                {"order", OrderJson(identity)},
                {"spec", SpecJson(identity.spec)}};
  if (identity.training_samples > 0) {
    state["position"] = {{"epoch", used / identity.training_samples},
                         {"samples_used_in_epoch", used % identity.training_samples}};
  }
  return state.dump(2) + "\n";
}

std::string GenerationConfigJson(const DecoderConfig& config) {
  if (config.eos_token_ids.empty()) return "";
  json generation = {{"eos_token_id", config.eos_token_ids.front()}};
  if (config.eos_token_ids.size() > 1) generation["eos_token_id"] = config.eos_token_ids;
  if (config.bos_token_id) generation["bos_token_id"] = *config.bos_token_id;
  return generation.dump(2) + "\n";
}

absl::Status CheckOrder(const json& state, const RunIdentity& identity, const std::string& folder) {
  ASSIGN_OR_RETURN(const json* order, ObjectField(state, "order"));
  const json wanted = OrderJson(identity);
  for (const auto& [key, value] : wanted.items()) {
    if (order->contains(key) && (*order)[key] == value) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint ", folder, " was made with ", key, " ",
        order->contains(key) ? (*order)[key].dump() : "unknown", " and the job has ", value.dump(),
        ", so it cannot be resumed: give the job another checkpoint.directory, or start from these "
        "weights with model.from: ",
        folder));
  }
  return absl::OkStatus();
}

absl::Status LoadBuffer(const Safetensors& file, absl::string_view prefix, Replica& replica,
                        const torch::Tensor& buffer) {
  torch::Tensor host = buffer.cpu();
  float* data = host.data_ptr<float>();
  for (const Parameter& parameter : replica.parameters().all()) {
    RETURN_IF_ERROR(
        LoadValues(file, absl::StrCat(prefix, parameter.shape.name), parameter.shape.shape,
                   absl::MakeSpan(data + parameter.offset, static_cast<size_t>(parameter.size))));
  }
  torch::NoGradGuard no_grad;
  if (!buffer.is_cpu()) torch::Tensor(buffer).copy_(host);
  return absl::OkStatus();
}

// A checkpoint of a run that kept none owes nothing; a run that keeps none forgets what was owed.
absl::Status LoadResidual(const Safetensors& file, Replica& replica) {
  GradientResidual& residual = replica.residual();
  if (!residual.kept()) return absl::OkStatus();
  RETURN_IF_ERROR(residual.Keep(replica.parameters().elements()));
  const absl::Status loaded = LoadBuffer(file, kResidual, replica, residual.values());
  return absl::IsNotFound(loaded) ? absl::OkStatus() : loaded;
}

}  // namespace

ReplicaContent ContentOf(Replica& replica, const RunIdentity& identity,
                         std::optional<double> validation_loss) {
  ReplicaContent result;
  for (const torch::Tensor& buffer : replica.Buffers()) result.host.push_back(buffer.cpu());
  CheckpointContent& content = result.content;
  content.step = replica.step();
  const auto add = [&](size_t buffer, absl::string_view prefix, std::vector<NamedValues>& to) {
    const float* data = result.host[buffer].data_ptr<float>();
    for (const Parameter& parameter : replica.parameters().all()) {
      to.push_back(
          {absl::StrCat(prefix, parameter.shape.name), parameter.shape.shape,
           absl::MakeConstSpan(data + parameter.offset, static_cast<size_t>(parameter.size))});
    }
  };
  add(0, "", content.model);
  add(1, kFirstMoment, content.optimizer);
  add(2, kSecondMoment, content.optimizer);
  if (replica.residual().kept()) {
    result.host.push_back(replica.residual().values());
    add(3, kResidual, content.optimizer);
  }
  content.config_json = DecoderConfigToJson(replica.config());
  content.generation_config_json = GenerationConfigJson(replica.config());
  content.tokenizer_json = identity.tokenizer_json;
  content.tokenizer_config_json = identity.tokenizer_config_json;
  content.trainer_state_json = StateJson(replica.counters(), identity);
  content.validation_loss = validation_loss;
  return result;
}

absl::Status LoadReplica(const Checkpoint& checkpoint, const RunIdentity& identity,
                         Replica& replica) {
  ASSIGN_OR_RETURN(const std::string text, checkpoint.Text("trainer_state.json"));
  ASSIGN_OR_RETURN(const json state, ParseJsonObject(text));
  RETURN_IF_ERROR(CheckOrder(state, identity, checkpoint.folder()));
  TrainingCounters counters;
  ASSIGN_OR_RETURN(counters.step, IntegerField(state, "step"));
  ASSIGN_OR_RETURN(counters.updates, IntegerField(state, "optimizer_updates"));
  ASSIGN_OR_RETURN(counters.skipped, IntegerField(state, "skipped_steps"));
  ASSIGN_OR_RETURN(counters.skipped_in_a_row, IntegerField(state, "skipped_steps_in_a_row"));
  ASSIGN_OR_RETURN(counters.loss_scale, LoadLossScale(state, identity));
  const std::array<torch::Tensor, 3> buffers = replica.Buffers();
  RETURN_IF_ERROR(LoadBuffer(checkpoint.model(), "", replica, buffers[0]));
  RETURN_IF_ERROR(LoadBuffer(checkpoint.optimizer(), kFirstMoment, replica, buffers[1]));
  RETURN_IF_ERROR(LoadBuffer(checkpoint.optimizer(), kSecondMoment, replica, buffers[2]));
  RETURN_IF_ERROR(LoadResidual(checkpoint.optimizer(), replica));
  replica.counters() = counters;
  replica.optimizer().set_updates(counters.updates);
  return CatchTorch("narrowing the weights", [&] { replica.parameters().RefreshCopy(); });
}

}  // namespace espalier
