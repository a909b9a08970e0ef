#include "worker/model/self_check.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/model/decoder.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

// Of the norm of all gradients.
constexpr double kSmallPart = 0.003;

constexpr int64_t kBatch = 2, kVocabulary = 48;

// Between them the trials need every operation of training.
DecoderConfig TrialConfig(bool tied) {
  DecoderConfig config;
  config.vocab_size = kVocabulary;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.tie_word_embeddings = tied;
  config.sliding_window = 40;
  config.full_attention = {1, 0};
  config.qk_norm = tied;
  config.attention_bias = config.output_bias = config.mlp_bias = !tied;
  return config;
}

// Ids and targets that a pass of its own number has, of which the first few targets do not count.
std::pair<Tensor, Tensor> TrialTokens(int64_t positions, int64_t pass) {
  const Tensor places = torch::arange(kBatch * positions, torch::kLong).view({kBatch, positions});
  const Tensor ids = (places * places * 5 + places + pass).remainder(kVocabulary);
  Tensor targets = (ids * 3 + 1).remainder(kVocabulary);
  targets.narrow(1, 0, 9 + pass).fill_(kIgnoredTarget);
  return {ids, targets};
}

Tensor TrialKeys() { return torch::tensor({int64_t{-5}, int64_t{1} << 62}); }

// Of two passes, of which the second drops values: the losses' sum, and the gradients, which are
// added, by parameter on the host.
struct Trial {
  double loss = 0;
  std::vector<Tensor> gradients;
};
Trial RunTrial(const DecoderConfig& config, torch::Device device, torch::ScalarType type,
               EmbeddingGradient untied_embedding, int64_t positions) {
  Parameters::Options options = Parameters::ForTraining(device, type);
  options.untied_embedding = untied_embedding;
  Parameters parameters = Parameters::Create(config, options).value();
  parameters.Initialize(1, 0.3);
  const Decoder decoder(config, parameters);
  PassInputs inputs;
  if (parameters.embedding() == EmbeddingGradient::kRowsApart) {
    const Tensor table = parameters.Find(kEmbeddingName)->leaf;
    inputs.lookup = {table.detach().clone().set_requires_grad(true),
                     torch::arange(kVocabulary, torch::kLong).to(device)};
    inputs.lookup.rows.mutable_grad() = torch::zeros_like(table);
  }
  Trial trial;
  parameters.flat_gradient().Only().fill_(1);
  parameters.ZeroGradients();
  for (int64_t pass = 0; pass < 2; ++pass) {
    const auto [ids, targets] = TrialTokens(positions, pass);
    if (pass == 1) inputs.dropout = {.rate = 0.1, .of_row = TrialKeys().to(device)};
    const Tensor loss = decoder.LossSum(ids.to(device), targets.to(device), {}, inputs);
    loss.backward();
    trial.loss += loss.item<double>();
  }
  const Tensor flat = parameters.flat_gradient().Only().cpu();
  for (const Parameter& parameter : parameters.trained()) {
    if (parameter.offset + parameter.size > flat.numel()) continue;
    trial.gradients.push_back(flat.narrow(0, parameter.offset, parameter.size));
  }
  const Tensor& rows = inputs.lookup.rows;
  if (rows.defined()) trial.gradients.push_back(rows.grad().cpu().flatten());
  return trial;
}

// The larger one; NaN where either is.
double Worse(double a, double b) { return a >= b || std::isnan(a) ? a : b; }

// The largest difference of the loss, and of a parameter's gradient, relative to its norm. What is
// hardly part of the whole is compared with that: near nothing rounding is all there is.
double Difference(const Trial& found, const Trial& expected) {
  const double whole = torch::cat(expected.gradients).norm().item<double>();
  double worst = std::abs(found.loss / expected.loss - 1);
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    const Tensor& gradient = expected.gradients[i];
    const double norm = std::max(gradient.norm().item<double>(), kSmallPart * whole);
    worst = Worse(worst, (found.gradients[i] - gradient).norm().item<double>() / norm);
  }
  return worst;
}

bool DropsTheSame(torch::Device device, torch::ScalarType type) {
  const DropoutKeys keys{.rate = 0.3, .of_row = TrialKeys()};
  const Tensor like = torch::empty({kBatch, 40, 13}, type);
  const DropoutKeys there{.rate = 0.3, .of_row = keys.of_row.to(device)};
  return torch::equal(internal::GenericDropoutMask(like.to(device), there, 3).cpu(),
                      DropoutMask(like, keys, 3));
}

// More than rounding explains, with TF32 at most where the type is fp32: bfloat16 on the CPU comes
// to 0.055, and other devices round the residual stream besides.
double Allowed(torch::ScalarType type) {
  if (type == torch::kBFloat16) return 0.2;
  return type == torch::kHalf ? 0.05 : 0.01;
}

}  // namespace

absl::StatusOr<double> SelfTest(torch::Device device, torch::ScalarType type) {
  // As many as attention takes in two blocks of queries there: 128 rows each, or 1024.
  const int64_t positions = device.is_cpu() ? 140 : 1040;
  double difference = 0;
  bool drops_the_same = true;
  const EmbeddingGradient embedding = Parameters::ForTraining(device, type).untied_embedding;
  const absl::Status tried = CatchTorch("", [&] {
    for (const bool tied : {true, false}) {
      const DecoderConfig config = TrialConfig(tied);
      difference =
          Worse(difference,
                Difference(RunTrial(config, device, type, embedding, positions),
                           RunTrial(config, torch::kCPU, torch::kFloat, embedding, positions)));
    }
    drops_the_same = DropsTheSame(device, type);
  });
  if (absl::IsResourceExhausted(tried)) return tried;
  const std::string choose =
      "; choose another train.precision ('fp32' always works) or another launch.device";
  if (!tried.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "train.precision is '", PrecisionName(type), "', which device ", device.str(),
        " does not compute in with LibTorch ", TorchVersion(), tried.message(), choose));
  }
  if (!(difference <= Allowed(type))) {
    return absl::FailedPreconditionError(
        absl::StrCat("in ", PrecisionName(type), " device ", device.str(),
                     " computes a loss or a gradient that differs by ", difference,
                     " of its norm from the CPU's (at most ", Allowed(type),
                     " is allowed) with LibTorch ", TorchVersion(), choose));
  }
  if (!drops_the_same) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device ", device.str(), " chooses what is dropped otherwise than the CPU with LibTorch ",
        TorchVersion(), choose));
  }
  return difference;
}

}  // namespace espalier
