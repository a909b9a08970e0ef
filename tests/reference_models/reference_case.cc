#include "tests/reference_models/reference_case.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "worker/model/adapter_files.h"
#include "worker/model/decoder.h"
#include "worker/model/pretrained.h"
#include "worker/optimizer/optimizer.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using Json = nlohmann::json;
using torch::Tensor;

constexpr int64_t kJsonLimitBytes = int64_t{256} << 20;
constexpr int64_t kIgnored = -100;
// Gradient norms below this share of the global norm are compared with it instead: what they hold
// is rounding.
constexpr double kSmallGradient = 1e-4;

class ReferenceCase {
 public:
  ReferenceCase(PretrainedModel model, Json expected, const ReferenceOptions& options)
      : model_(std::move(model)),
        decoder_(model_.config, model_.parameters),
        expected_(std::move(expected)),
        options_(options) {
    const auto rows = expected_["input_ids"].get<std::vector<std::vector<int64_t>>>();
    ids_ = torch::empty({static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size())},
                        torch::kLong);
    for (size_t i = 0; i < rows.size(); ++i) {
      ids_[static_cast<int64_t>(i)] = torch::tensor(rows[i], torch::kLong);
    }
    ids_ = ids_.to(model_.parameters.flat().device());
  }

  std::vector<ReferenceCheck> Run() {
    Logits();
    LogProbabilities();
    Greedy();
    LossAndGradients();
    if (Has("adamw")) RunAdamW("adamw_losses", expected_["adamw"]);
    return std::move(checks_);
  }

  // Of a model with the adapter that lies beside it.
  std::vector<ReferenceCheck> RunLora() {
    {
      torch::NoGradGuard no_grad;
      if (Has("lora_logits_first_row_last_pos")) {
        Compare("lora_logits_first_row_last_pos",
                Values(decoder_.Logits(ids_)[0][ids_.size(1) - 1]));
      }
    }
    if (Has("lora_trainable_params")) {
      CompareNumber("lora_trainable_params",
                    static_cast<double>(model_.parameters.trained_elements()),
                    expected_["lora_trainable_params"]);
    }
    // The records do not say how adapters were trained; all of them follow from these values, which
    // are PyTorch's but for the rate and the decay.
    RunAdamW("lora_adamw_losses",
             {{"lr", 5e-3}, {"betas", {0.9, 0.999}}, {"eps", 1e-8}, {"weight_decay", 0}});
    MergedLogits();
    return std::move(checks_);
  }

 private:
  bool Has(const char* key) const { return expected_.contains(key); }

  void Add(const std::string& name, double error, std::string detail) {
    checks_.push_back({name, error, std::move(detail), error <= options_.tolerance});
  }

  // Largest difference over the largest recorded magnitude.
  // `allowance`: what the error is divided by.
  void Compare(const std::string& name, const std::vector<double>& got, double allowance = 1) {
    const auto want = expected_[name].get<std::vector<double>>();
    if (got.size() != want.size()) {
      return Add(name, INFINITY, absl::StrCat(got.size(), " values for ", want.size()));
    }
    double scale = 0, worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      scale = std::max(scale, std::abs(want[i]));
      const double error = std::abs(got[i] - want[i]);
      if (error > worst || std::isnan(error)) worst = error, at = i;
    }
    Add(name, worst / scale / allowance, absl::StrCat("[", at, "] ", got[at], " for ", want[at]));
  }
  void CompareNumber(const std::string& name, double got, double want) {
    Add(name, std::abs(got - want) / std::abs(want), absl::StrCat(got, " for ", want));
  }

  static std::vector<double> Values(const Tensor& tensor) {
    const Tensor flat = tensor.to(torch::kCPU).to(torch::kDouble).flatten().contiguous();
    return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
  }

  void Logits() {
    torch::NoGradGuard no_grad;
    const Tensor logits = decoder_.Logits(ids_);
    if (Has("logits_first_row_last_pos")) {
      Compare("logits_first_row_last_pos", Values(logits[0][ids_.size(1) - 1]));
    }
    if (Has("logits_second_row_pos5") && ids_.size(0) > 1) {
      Compare("logits_second_row_pos5", Values(logits[1][5]));
    }
    if (Has("logits_sum_abs")) {
      const auto values = Values(logits.abs());
      double sum = 0;
      for (const double value : values) sum += value;
      CompareNumber("logits_sum_abs", sum, expected_["logits_sum_abs"]);
    }
  }

  // Position t predicts token t + 1; the last has no target.
  Tensor Targets() const {
    Tensor targets = torch::full_like(ids_, kIgnored);
    const int64_t last = ids_.size(1) - 1;
    targets.narrow(1, 0, last).copy_(ids_.narrow(1, 1, last));
    return targets;
  }
  double TargetCount() const { return static_cast<double>(ids_.size(0) * (ids_.size(1) - 1)); }

  void LogProbabilities() {
    if (!Has("token_logprobs_row0")) return;
    const Tensor all = decoder_.TargetLogProbabilities(ids_, Targets());
    Compare("token_logprobs_row0", Values(all[0].narrow(0, 0, ids_.size(1) - 1)));
  }

  // The first 16 ids of the first row. They were continued with pad_token_id 0, of which
  // transformers makes an attention mask unless 0 also ends texts: ids of 0 then count as not
  // there.
  Tensor GreedyPrompt() const {
    const Tensor prompt = ids_.narrow(0, 0, 1).narrow(1, 0, 16);
    const auto& ends = model_.config.eos_token_ids;
    if (std::find(ends.begin(), ends.end(), 0) != ends.end()) return prompt;
    return prompt.masked_select(prompt != 0).view({1, -1});
  }

  void Greedy() {
    if (!Has("greedy_24_from_first_16")) return;
    const auto want = expected_["greedy_24_from_first_16"].get<std::vector<int64_t>>();
    Tensor next = GreedyPrompt()[0];
    const auto most = next.size(0) + static_cast<int64_t>(want.size());
    KeyValueCache cache = *decoder_.MakeCache({.rows = 1, .positions = most});
    cache.BeginPrompt(0, next.size(0));
    std::vector<int64_t> got;
    while (got.size() < want.size()) {
      next = decoder_.NextLogits(next, cache).argmax(1);
      got.push_back(next.item<int64_t>());
      cache.BeginStep(1);
    }
    Add("greedy_24_from_first_16", got == want ? 0 : 1, absl::StrJoin(got, " "));
  }

  // Gradients of the mean loss; returns the loss.
  double Backward() {
    model_.parameters.ZeroGradients();
    const Tensor loss = decoder_.LossSum(ids_, Targets());
    loss.backward();
    model_.parameters.flat_gradient().Only().div_(TargetCount());
    return loss.item<double>() / TargetCount();
  }
  double GlobalNorm() { return model_.parameters.flat_gradient().Only().norm().item<double>(); }

  void LossAndGradients() {
    if (!Has("loss") && !Has("grad_norms")) return;
    const double loss = Backward();
    if (Has("loss")) CompareNumber("loss", loss, expected_["loss"]);
    if (Has("grad_global_norm")) {
      CompareNumber("grad_global_norm", GlobalNorm(), expected_["grad_global_norm"]);
    }
    if (!Has("grad_norms")) return;
    for (const auto& [name, recorded] : expected_["grad_norms"].items()) {
      const Parameter* parameter = model_.parameters.Find(name);
      if (parameter == nullptr) {
        Add(absl::StrCat("grad_norm ", name), INFINITY, "no such parameter here");
        continue;
      }
      const double want = recorded, got = parameter->leaf.grad().norm().item<double>();
      const double scale = std::max(want, kSmallGradient * GlobalNorm());
      Add(absl::StrCat("grad_norm ", name), std::abs(got - want) / scale,
          absl::StrCat(got, " for ", want));
    }
  }

  // What was trained, as a model without adapters.
  void MergedLogits() {
    constexpr char kName[] = "lora_after_10_steps_merged_logits_first_row_last_pos";
    if (!Has(kName)) return;
    torch::NoGradGuard no_grad;
    auto merged = Parameters::Create(model_.config, {.device = model_.parameters.device()});
    if (!merged.ok()) return Add(kName, INFINITY, merged.status().ToString());
    for (const Parameter& parameter : merged->all()) {
      const Parameter& from = *model_.parameters.Find(parameter.shape.name);
      Tensor(parameter.value).copy_(MergedValue(model_.config, model_.parameters, from));
    }
    merged->RefreshCopy();
    const Decoder decoder(model_.config, *merged);
    // Where a gradient nearly vanishes, its rounding decides on whole steps of Adam: instruction
    // sets alone differ by 1.7e-4.
    Compare(kName, Values(decoder.Logits(ids_)[0][ids_.size(1) - 1]), /*allowance=*/5);
  }

  // The trainer's own optimizer.
  void RunAdamW(const char* name, const Json& recorded) {
    if (!Has(name)) return;
    v1::OptimizerSpec spec;
    spec.set_beta1(recorded["betas"][0]);
    spec.set_beta2(recorded["betas"][1]);
    spec.set_eps(recorded["eps"]);
    spec.set_weight_decay(recorded["weight_decay"]);
    spec.set_decay_all(recorded.value("decay_all_params", true));
    auto optimizer = AdamW::Create(spec, model_.parameters);
    if (!optimizer.ok()) return Add(name, INFINITY, optimizer.status().ToString());
    std::vector<double> losses;
    while (losses.size() < expected_[name].size()) {
      losses.push_back(Backward());
      const double clip = recorded.value("clip", 0.0);
      optimizer->Apply({.learning_rate = recorded["lr"],
                        .gradient_scale = clip > 0 ? ClipFactor(GlobalNorm(), clip) : 1});
    }
    Compare(name, losses);
  }

  PretrainedModel model_;
  Decoder decoder_;
  Json expected_;
  ReferenceOptions options_;
  Tensor ids_;
  std::vector<ReferenceCheck> checks_;
};

absl::StatusOr<Json> ReadExpected(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, PosixFileSystem().Read(path, kJsonLimitBytes));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("input_ids")) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no input_ids"));
  }
  return json;
}

}  // namespace

namespace {

// The cases of the adapter in folder/adapter, if there is one.
absl::Status RunLoraCase(const std::string& folder, torch::Device device, const Json& expected,
                         const ReferenceOptions& options, std::vector<ReferenceCheck>& checks) {
  const std::string adapter = JoinPath(folder, "adapter");
  if (!HoldsAdapter(adapter)) return absl::OkStatus();
  Parameters::Options parameters = Parameters::ForTraining(device);
  ASSIGN_OR_RETURN(parameters.lora, ReadLoraConfig(adapter));
  parameters.trained = [](const ParameterShape& shape) { return shape.is_adapter(); };
  ASSIGN_OR_RETURN(PretrainedModel model, LoadPretrained(folder, std::move(parameters)));
  RETURN_IF_ERROR(LoadAdapter(adapter, model.parameters));
  return CatchTorch(adapter, [&] {
    const auto more = ReferenceCase(std::move(model), expected, options).RunLora();
    checks.insert(checks.end(), more.begin(), more.end());
  });
}

}  // namespace

absl::StatusOr<std::vector<ReferenceCheck>> RunReferenceCase(const std::string& folder,
                                                             const ReferenceOptions& options) {
  ASSIGN_OR_RETURN(const SelectedDevice device, SelectDevice({.name = options.device}));
  Parameters::Options parameters = Parameters::ForTraining(device.device);
  parameters.untied_embedding = EmbeddingGradient::kDense;
  ASSIGN_OR_RETURN(PretrainedModel model, LoadPretrained(folder, std::move(parameters)));
  ASSIGN_OR_RETURN(const Json expected, ReadExpected(JoinPath(folder, "expected.json")));
  std::vector<ReferenceCheck> checks;
  RETURN_IF_ERROR(CatchTorch(
      folder, [&] { checks = ReferenceCase(std::move(model), expected, options).Run(); }));
  RETURN_IF_ERROR(RunLoraCase(folder, device.device, expected, options, checks));
  if (checks.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, "/expected.json holds no value that can be compared"));
  }
  return checks;
}

}  // namespace espalier
