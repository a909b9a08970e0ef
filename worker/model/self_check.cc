#include "worker/model/self_check.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/observe/log.h"
#include "worker/model/decoder.h"
#include "worker/model/operator_trials.h"
#include "worker/model/recursive_model.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

// Of the norm of all gradients.
constexpr double kSmallPart = 0.003;

constexpr int64_t kBatch = 2, kVocabulary = 48;
constexpr char kDecoder[] = "a loss or a gradient";
constexpr char kDropped[] = "what is dropped";

// Between them the trials of an architecture need every operation of its training.
DecoderConfig TrialConfig(Architecture architecture, int64_t positions, bool tied) {
  DecoderConfig config;
  config.architecture = architecture;
  config.max_position_embeddings = positions;
  config.vocab_size = kVocabulary;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.tie_word_embeddings = tied;
  if (architecture == Architecture::kGpt2) {
    config.kv_heads = config.heads;
    return config;
  }
  if (architecture == Architecture::kTrm) {  // of text, and of puzzles
    config.kv_heads = config.heads;
    config.tie_word_embeddings = false;
    RecursionConfig& recursion = config.recursion.emplace();
    recursion.high_cycles = recursion.low_cycles = 2;
    if (!tied) recursion.positions = RecursionConfig::Positions::kLearned;
    recursion.causal = recursion.halt_reads_last = tied;
    recursion.stablemax = !tied;
    return config;
  }
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

// Of a decoder, or of a supervision step and what it says of halting.
Tensor TrialLoss(const Model& model, const Tensor& ids, const Tensor& targets,
                 const PassInputs& inputs) {
  if (!model.config().recursion) return DecoderOf(model).LossSum(ids, targets, {}, inputs);
  const RecursiveModel& recursive = RecursiveModelOf(model);
  const RecursiveModel::State state =
      recursive.Think(ids, recursive.Begin(ids.size(0), ids.size(1)), inputs);
  const Tensor last = torch::full({ids.size(0)}, ids.size(1) - 1, ids.options());
  RowLoss loss;
  if (recursive.recursion().stablemax) loss.probabilities = Probabilities::kStablemax;
  loss.right = torch::zeros({ids.numel()}, ids.options().dtype(torch::kBool));
  return recursive.LossSum(state.high, targets, loss, inputs) +
         recursive.Halting(state.high, last).sum();
}

Tensor TrialKeys() { return torch::tensor({int64_t{-5}, int64_t{1} << 62}); }

// One of plain descent, where the values are; the gradients come there in one piece, as in training
// they come in buckets.
void Update(Parameters& parameters) {
  const torch::NoGradGuard no_grad;
  const Tensor gradient = parameters.flat_gradient().Only();
  const Tensor values = parameters.flat().Only().narrow(0, 0, gradient.numel());
  values.sub_(gradient.to(values.device()), 1e-3);
  parameters.RefreshCopy();
}

// Of two passes, between which there is an update, and of which the second drops values: the
// losses' sum, and the gradients, which are added, by parameter on the host.
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
  const std::unique_ptr<Model> model = MakeModel(config, parameters);
  PassInputs inputs;
  if (parameters.embedding() == EmbeddingGradient::kRowsApart) {
    const Tensor table = parameters.Embedding().leaf;
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
    const Tensor loss = TrialLoss(*model, ids.to(device), targets.to(device), inputs);
    loss.backward();
    trial.loss += loss.item<double>();
    if (pass == 0) Update(parameters);
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

// The largest difference of one of the tensors, relative to its norm.
double Difference(const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const Tensor right = expected[i].to(torch::kDouble);
    const Tensor difference = found[i].cpu().to(torch::kDouble) - right;
    worst = Worse(worst, difference.norm().item<double>() / right.norm().item<double>());
  }
  return worst;
}

// More than rounding explains, with TF32 at most where the type is fp32. Of a whole decoder in
// bfloat16: on the CPU it comes to 0.055, and other devices round the residual stream besides.
double Allowed(torch::ScalarType type) {
  if (type == torch::kBFloat16) return 0.2;
  return type == torch::kHalf ? 0.05 : 0.01;
}
// Of one operation, of which the longest, a product with adapters, comes to 0.045 in bfloat16 and
// 0.016 in float16: faults of a tenth are to be seen.
double AllowedOfOne(torch::ScalarType type) {
  if (type == torch::kBFloat16) return 0.08;
  return type == torch::kHalf ? 0.04 : 0.01;
}

// What differed most, compared with what is allowed; and what is being tried.
struct Finding {
  const char* what = "";
  double difference = 0, allowed = 1;
  double most = 0;  // of all
  const char* trying = "";

  bool good() const { return difference <= allowed; }
};

void Note(Finding& worst, const char* what, double difference, double allowed) {
  worst.most = Worse(worst.most, difference);
  if (std::isnan(worst.difference)) return;
  if (difference / allowed <= worst.difference / worst.allowed) return;
  worst.what = what;
  worst.difference = difference;
  worst.allowed = allowed;
}

// What is tried of a device, and what comes of it.
struct Trials {
  std::vector<std::vector<Tensor>> operators;  // of OperatorTrials
  std::vector<Trial> decoders;                 // tied, untied
};

// In the place of `expected` where that is given: then what differs is noted, and what comes after
// something wrong is left out.
Trials TryAll(const TrialPlace& place, Architecture architecture, EmbeddingGradient embedding,
              const Trials* expected, Finding& worst) {
  Trials found;
  const std::vector<OperatorTrial> trials = OperatorTrials(architecture);
  for (size_t i = 0; i < trials.size() && worst.good(); ++i) {
    const OperatorTrial& trial = trials[i];
    worst.trying = trial.name;
    found.operators.push_back(trial.run(place));
    if (expected == nullptr) continue;
    Note(worst, trial.name, Difference(found.operators[i], expected->operators[i]),
         AllowedOfOne(place.type));
  }
  for (size_t i = 0; i < 2 && worst.good(); ++i) {
    worst.trying = kDecoder;
    found.decoders.push_back(RunTrial(TrialConfig(architecture, place.positions, /*tied=*/i == 0),
                                      place.device, place.type, embedding, place.positions));
    if (expected == nullptr) continue;
    Note(worst, kDecoder, Difference(found.decoders[i], expected->decoders[i]),
         Allowed(place.type));
  }
  return found;
}

// Some faults depend on what was allocated before (pytorch#177116, #193487).
void StirMemory(torch::Device device) {
  constexpr int64_t kElements = int64_t{1} << 26;
  for (int64_t part = 1; part <= 3; ++part) {
    torch::full({kElements / part}, 1e9, torch::TensorOptions().device(device));
  }
}

absl::Status Refusal(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(
      why, "; choose another train.precision ('fp32' always works) or another launch.device"));
}

}  // namespace

DeviceTrial TryDevice(torch::Device device, torch::ScalarType type, Architecture architecture) {
  // As many as attention takes in two blocks of queries there: 128 rows each, or 1024.
  const int64_t positions = device.is_cpu() ? 140 : 1040;
  Finding worst;
  const absl::Status tried = CatchTorch("", [&] {
    const EmbeddingGradient embedding = Parameters::ForTraining(device, type).untied_embedding;
    const auto all_of = [&](torch::Device in, torch::ScalarType as, const Trials* than) {
      return TryAll({in, as, positions}, architecture, embedding, than, worst);
    };
    const Trials expected = all_of(torch::kCPU, torch::kFloat, nullptr);
    worst.trying = kDropped;
    if (!DropsTheSame(device, type)) return Note(worst, kDropped, 1, 0.5);
    all_of(device, type, &expected);
    if (device.is_cpu()) return;
    StirMemory(device);
    all_of(device, type, &expected);
  });
  if (absl::IsResourceExhausted(tried)) return {tried, "", worst.most};
  if (!tried.ok()) {
    const std::string trying(absl::StripSuffix(worst.trying, ","));
    return {Refusal(absl::StrCat("train.precision is '", PrecisionName(type), "', which device ",
                                 device.str(), " does not compute in with LibTorch ",
                                 TorchVersion(), ": ", trying, tried.message())),
            trying, worst.most};
  }
  if (worst.good()) return {absl::OkStatus(), "", worst.most};
  return {Refusal(absl::StrCat("in ", PrecisionName(type), " device ", device.str(), " computes ",
                               worst.what, " otherwise than the CPU, by ", worst.difference,
                               " of the norm (at most ", worst.allowed,
                               " is allowed), with LibTorch ", TorchVersion())),
          std::string(absl::StripSuffix(worst.what, ",")), worst.difference};
}

absl::StatusOr<double> SelfTest(torch::Device device, torch::ScalarType type,
                                Architecture architecture) {
  const DeviceTrial trial = TryDevice(device, type, architecture);
  if (!trial.status.ok()) return trial.status;
  return trial.difference;
}

absl::StatusOr<std::optional<double>> SelfTestBeforeTraining(torch::Device device,
                                                             torch::ScalarType type,
                                                             Architecture architecture) {
  if (device.is_cpu() && type == torch::kFloat) return std::nullopt;
  ASSIGN_OR_RETURN(const double difference, SelfTest(device, type, architecture));
  LogInfo(
      absl::StrFormat("self-test: what %s computes in %s differs by at most %.1e of its norm "
                      "from fp32 on the CPU",
                      device.str(), PrecisionName(type), difference));
  return difference;
}

}  // namespace espalier
