#include "worker/state/trainer_state.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/data/order.h"
#include "worker/formats/json_fields.h"

namespace espalier {
namespace {

using nlohmann::json;

constexpr int64_t kStateFormat = 1;
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
          {"global_batch", identity.spec.train().global_batch()},
          {"whole_epochs", identity.spec.train().has_epochs()},
          {"group_by_length", identity.spec.data().group_by_length()},
          {"packing", identity.spec.data().packing()}};
}

json LossScaleJson(const LossScale& scale) {
  return {{"dynamic", scale.dynamic != 0},
          {"exponent", scale.exponent},
          {"finite_in_a_row", scale.finite_in_a_row}};
}

// That of a checkpoint from before there was a scale is 1.
absl::StatusOr<LossScale> SavedLossScale(const json& state) {
  LossScale scale;
  if (!state.contains("loss_scale")) return scale;
  ASSIGN_OR_RETURN(const json* saved, ObjectField(state, "loss_scale"));
  ASSIGN_OR_RETURN(const int64_t exponent, IntegerField(*saved, "exponent"));
  scale.exponent = std::clamp<int64_t>(exponent, 0, LossScale::kLastExponent);
  ASSIGN_OR_RETURN(scale.finite_in_a_row, IntegerField(*saved, "finite_in_a_row"));
  const auto dynamic = saved->find("dynamic");
  // Older checkpoints do not say; a scale that stays never moves.
  const bool moved = scale.exponent != 0 || scale.finite_in_a_row != 0;
  scale.dynamic = (dynamic == saved->end() ? moved : *dynamic == true) ? 1 : 0;
  return scale;
}

// A run that begins to scale its losses, or ends to, has a new one.
LossScale Continued(const LossScale& saved, const RunIdentity& identity) {
  const LossScale fresh = LossScale::For(identity.spec.train().precision());
  return fresh.dynamic && saved.dynamic ? saved : fresh;
}

// Of frozen values, and of the type in which they are kept, on which it depends.
json BaseFingerprintJson(Replica& replica) {
  return {{"precision", torch::toString(replica.parameter_options().compute_type)},
          {"fingerprint", absl::StrFormat("%016x", replica.FrozenFingerprint())}};
}

json ValidationJson(const ValidationProgress& progress) {
  const bool known = progress.best_step > 0;
  return {{"step", progress.step},
          {"best_loss", known ? json(progress.best()) : json()},
          {"best_step", progress.best_step},
          {"without_gain", progress.without_gain},
          {"without_gain_at_rate", progress.without_gain_at_rate},
          {"reductions", progress.reductions}};
}

// Older checkpoints do not say.
absl::StatusOr<ValidationProgress> SavedValidation(const json& state) {
  ValidationProgress progress;
  if (!state.contains("validation")) return progress;
  ASSIGN_OR_RETURN(const json* saved, ObjectField(state, "validation"));
  ASSIGN_OR_RETURN(progress.step, IntegerField(*saved, "step"));
  ASSIGN_OR_RETURN(progress.best_step, IntegerField(*saved, "best_step"));
  ASSIGN_OR_RETURN(progress.without_gain, IntegerField(*saved, "without_gain"));
  ASSIGN_OR_RETURN(progress.without_gain_at_rate, IntegerField(*saved, "without_gain_at_rate"));
  ASSIGN_OR_RETURN(progress.reductions, IntegerField(*saved, "reductions"));
  const auto best = saved->find("best_loss");
  if (progress.best_step > 0 && best != saved->end() && best->is_number()) {
    progress.best_bits = std::bit_cast<uint64_t>(best->get<double>());
  }
  return progress;
}

// 0: it does not say.
uint64_t SavedLearnsFrom(const json& state) {
  uint64_t hash = 0;
  const auto saved = state.find("learns_from");
  const bool says = saved != state.end() && saved->is_string();
  return says && absl::SimpleHexAtoi(saved->get<std::string>(), &hash) ? hash : 0;
}

// How losses are measured and what is counted of them; and what a plateau does.
constexpr std::array kEvaluation = {"/evaluate/every_steps", "/evaluate/max_sequences",
                                    "/evaluate/patience", "/evaluate/min_delta"};
constexpr std::array kPlateau = {"/train/schedule/plateau_patience",
                                 "/train/schedule/plateau_factor",
                                 "/train/schedule/plateau_reductions"};

template <typename Paths>
bool Differ(const json& a, const json& b, const Paths& paths) {
  const auto at = [](const json& spec, const char* path) {
    const json::json_pointer pointer(path);
    return spec.contains(pointer) ? spec.at(pointer) : json();
  };
  return std::any_of(paths.begin(), paths.end(),
                     [&](const char* path) { return at(a, path) != at(b, path); });
}

// A job that goes on from another's checkpoint, with settings of its own, counts from its own
// beginning.
void CountAnew(const json& state, const v1::JobSpec& spec, ValidationProgress& progress) {
  if (!state.contains("spec")) return;
  const json own = SpecJson(spec);
  if (Differ(state["spec"], own, kPlateau)) {
    progress.reductions = 0;
    progress.without_gain_at_rate = 0;
  }
  if (!Differ(state["spec"], own, kEvaluation)) return;
  const int64_t reductions = progress.reductions;
  progress = {.step = progress.step};
  progress.reductions = reductions;
}

absl::StatusOr<json> ReadState(const Checkpoint& checkpoint) {
  ASSIGN_OR_RETURN(const std::string text, checkpoint.Text("trainer_state.json"));
  return ParseJsonObject(text);
}

absl::Status CheckOrder(const json& state, const RunIdentity& identity, const std::string& folder) {
  ASSIGN_OR_RETURN(const json* order, ObjectField(state, "order"));
  const json wanted = OrderJson(identity);
  for (const auto& [key, value] : wanted.items()) {
    const auto found = order->find(key);
    // Older checkpoints name a way of drawing samples only where it is theirs.
    const json otherwise = value.is_boolean() ? json(false) : json("unknown");
    const json& saved = found == order->end() ? otherwise : *found;
    if (saved == value) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint ", folder, " was made with ", key, " ", saved.dump(), " and the job has ",
        value.dump(),
        ", so it cannot be resumed: give the job another checkpoint.directory, or start from these "
        "weights with model.from: ",
        folder));
  }
  return absl::OkStatus();
}

}  // namespace

std::string TrainerStateJson(Replica& replica, const RunIdentity& identity) {
  const TrainingCounters& counters = replica.counters();
  json state = {{"format", kStateFormat},
                {"version", ESPALIER_VERSION},
                {"step", counters.step},
                {"optimizer_updates", counters.updates},
                {"skipped_steps", counters.skipped},
                {"skipped_steps_in_a_row", counters.skipped_in_a_row},
                {"loss_scale", LossScaleJson(counters.loss_scale)},
                {"validation", ValidationJson(counters.validation)},
                {"order", OrderJson(identity)},
                {"spec", SpecJson(identity.spec)}};
  if (!identity.computed_by.empty()) state["computed_by"] = identity.computed_by;
  if (counters.learns_from != 0) {
    state["learns_from"] = absl::StrFormat("%016x", counters.learns_from);
  }
  if (replica.has_frozen()) state["base"] = BaseFingerprintJson(replica);
  const auto order = SampleOrder::Create({.samples = identity.training_samples,
                                          .global_batch = identity.spec.train().global_batch(),
                                          .whole_epochs = identity.spec.train().has_epochs()});
  if (order.ok()) {
    const Step step(counters.step);
    state["position"] = {{"epoch", order->EpochOfStep(step)},
                         {"samples_used_in_epoch", order->UsedInEpoch(step)}};
  }
  return state.dump(2) + "\n";
}

absl::StatusOr<TrainerState> ReadTrainerState(const Checkpoint& checkpoint,
                                              const RunIdentity& identity) {
  ASSIGN_OR_RETURN(const json state, ReadState(checkpoint));
  RETURN_IF_ERROR(CheckOrder(state, identity, checkpoint.folder()));
  TrainerState read;
  TrainingCounters& counters = read.counters;
  ASSIGN_OR_RETURN(counters.step, IntegerField(state, "step"));
  ASSIGN_OR_RETURN(counters.updates, IntegerField(state, "optimizer_updates"));
  ASSIGN_OR_RETURN(counters.skipped, IntegerField(state, "skipped_steps"));
  ASSIGN_OR_RETURN(counters.skipped_in_a_row, IntegerField(state, "skipped_steps_in_a_row"));
  ASSIGN_OR_RETURN(counters.validation, SavedValidation(state));
  CountAnew(state, identity.spec, counters.validation);
  counters.learns_from = SavedLearnsFrom(state);
  ASSIGN_OR_RETURN(read.saved_scale, SavedLossScale(state));
  counters.loss_scale = Continued(read.saved_scale, identity);
  return read;
}

Glance GlanceAt(const Checkpoint& checkpoint) {
  Glance glance;
  const absl::StatusOr<json> state = ReadState(checkpoint);
  if (!state.ok()) return glance;
  if (const auto by = state->find("computed_by"); by != state->end() && by->is_string()) {
    glance.computed_by = by->get<std::string>();
  }
  if (const auto validation = SavedValidation(*state); validation.ok()) {
    glance.evaluated = validation->step;
  }
  return glance;
}

absl::Status CheckFrozen(const Checkpoint& checkpoint, Replica& replica) {
  if (!replica.has_frozen()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const json state, ReadState(checkpoint));
  if (!state.contains("base")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const json* saved, ObjectField(state, "base"));
  const json mine = BaseFingerprintJson(replica);
  if (!saved->contains("precision") || (*saved)["precision"] != mine["precision"] ||
      (saved->contains("fingerprint") && (*saved)["fingerprint"] == mine["fingerprint"])) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint ", checkpoint.folder(),
                   " was trained above other values of the parameters that are not trained (by "
                   "train.freeze, or under train.lora); give the job the model.from (or the "
                   "train.seed) that it was made with, or another checkpoint.directory"));
}

}  // namespace espalier
