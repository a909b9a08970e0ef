// Measures the training step of one process: tokens per second and peak memory, as one JSON line in
// the form of tests/bench/peers/pytorch_step.py, or pytorch_lora.py for shape 3b, of which adapters
// alone are trained, as of 360m. Run by `deploy/dev bench cpu_step`, `lora_cpu`, `h200` and
// `h200_lora`.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/config/recompute.h"
#include "common/platform/platform.h"
#include "tests/bench/lora_shapes.h"
#include "tests/bench/step_limit.h"
#include "tests/bench/token_ids.h"
#include "worker/collective/in_process.h"
#include "worker/memory/allocator.h"
#include "worker/model/decoder.h"
#include "worker/ops/cuda_ops.h"
#include "worker/optimizer/optimizer.h"
#include "worker/sync/lookup_exchange.h"
#include "worker/task/next_token.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch.h"
#include "worker/train/pass_runner.h"

namespace espalier {
namespace {

constexpr int kWarmUp = 3;  // steps that are not counted

struct Options {
  std::string shape = "17m";
  int64_t batch = 8;
  int64_t time = 256;
  int steps = 7;
  int threads = 2;
  std::string precision = "fp32";
  std::string device = "cpu";
  std::string moments = "fp32";
  std::string recompute = "none";
  double adapter_dropout = 0;
  bool kernel_by_kernel = false;
  bool limit = false;
  bool products = false;
};

Options Parse(int argc, char** argv) {
  Options options;
  CLI::App app("One process, one training step, measured");
  app.add_option("--shape", options.shape)
      ->check(CLI::IsMember({"17m", "124m", "1b", "360m", "3b"}));
  app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--batch", options.batch);
  app.add_option("--time", options.time);
  app.add_option("--steps", options.steps);
  app.add_option("--threads", options.threads);
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--moments", options.moments)->check(CLI::IsMember({"fp32", "int8"}));
  app.add_option("--recompute", options.recompute, "none, alternate, all, or layers: 0,3,6");
  app.add_option("--adapter-dropout", options.adapter_dropout, "360m, 3b: what adapters drop");
  app.add_flag("--kernel-by-kernel", options.kernel_by_kernel,
               "launch each kernel of a pass by itself where passes could be recorded");
  app.add_flag("--limit", options.limit,
               "time the step's products alone too, for the share of that limit (CPU)");
  app.add_flag("--products", options.products, "with --limit: a line for each product");
  try {
    app.parse(argc, argv);
    if (options.limit && options.device != "cpu") {
      throw CLI::ValidationError("--limit", "is measured on the CPU alone");
    }
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

// Adapters alone are trained.
bool OfAdapters(const Options& options) { return options.shape == "360m" || options.shape == "3b"; }

// The shapes of the peer: 17m tied with 8192 ids, 124m untied with 50304, 1b as it is.
DecoderConfig ConfigOf(const Options& options) {
  if (options.shape == "3b") return bench::Llama3b();
  if (options.shape == "360m") return bench::SmolLm360m();
  v1::ModelSpec spec;
  spec.set_preset(options.shape);
  if (options.shape != "1b") {
    spec.set_vocab_size(options.shape == "17m" ? 8192 : 50304);
    spec.set_tie_word_embeddings(options.shape == "17m");
  } else {
    spec.set_intermediate_size(5632);
    spec.set_sliding_window(0);
  }
  return DecoderConfigFromSpec(spec, 0).value();
}

// What the steps gave.
struct Measured {
  std::vector<double> rates;  // tokens per second, ascending
  double loss = 0;
  std::string ids;  // digest of what was trained on
  int64_t trained = 0;
};

// As the trainer has them: all in training, or adapters beside a frozen base.
Parameters::Options ParametersOf(const Options& options, torch::Device device) {
  const torch::ScalarType type = options.precision == "bf16" ? torch::kBFloat16 : torch::kFloat;
  return OfAdapters(options) ? bench::AdaptersAlone(device, type)
                             : Parameters::ForTraining(device, type);
}

Measured Measure(const Options& options, const DecoderConfig& config) {
  Measured measured;
  const torch::Device device(options.device);
  Parameters parameters = Parameters::Create(config, ParametersOf(options, device)).value();
  if (parameters.lora()) {
    bench::FillQuickly(parameters);
  } else {
    parameters.Initialize(1, config.initializer_range);
  }
  measured.trained = parameters.trained_elements();
  Decoder decoder(config, parameters);
  v1::TrainSpec train;
  for (const absl::string_view one : absl::StrSplit(options.recompute, ',')) {
    train.add_recompute(std::string(one));
  }
  decoder.set_recompute(RecomputedLayers(train, config.layers).value());
  v1::OptimizerSpec& spec = *train.mutable_optimizer();
  spec.set_moments(options.moments == "int8" ? v1::MOMENT_TYPE_INT8 : v1::MOMENT_TYPE_FP32);
  spec.set_beta1(0.9);
  spec.set_beta2(0.95);
  spec.set_eps(1e-8);
  spec.set_weight_decay(0.1);
  AdamW optimizer = AdamW::Create(spec, parameters).value();
  std::vector<int64_t> ids = bench::TokenIds(options.batch * (options.time + 1), config.vocab_size,
                                             /*seed=*/1);
  measured.ids = bench::DigestOf(ids);
  const torch::Tensor tokens =
      torch::from_blob(ids.data(), {options.batch, options.time + 1}, torch::kLong)
          .to(device, torch::kLong, /*non_blocking=*/false, /*copy=*/true);
  const TokenBatch batch{
      tokens.slice(1, 0, options.time).contiguous(), tokens.slice(1, 1).contiguous(), {}};
  const auto elements = static_cast<double>(batch.targets.numel());
  const NextToken task(nullptr);
  DropoutKeys dropout{.adapter_rate = options.adapter_dropout};
  if (dropout.any()) dropout.of_row = torch::arange(options.batch, tokens.options());
  PassRunner runner(task, decoder, parameters);
  const std::vector<std::unique_ptr<Collective>> alone = InProcessGroup(1, absl::Minutes(1));
  LookupExchange lookups(*alone[0], parameters, WireType::kFp32);
  ReleaseFreeMemory();
  for (int step = 0; step < options.steps + kWarmUp; ++step) {
    if (step == 1 && !options.kernel_by_kernel) {  // as the trainer does
      ESPALIER_CHECK(runner.Record({options.batch}, options.time, dropout).ok(), "not recorded");
    }
    const absl::Duration start = RealClock().Monotonic();
    const PassInputs inputs{.dropout = dropout, .lookup = lookups.Begin(ids).value()};
    const torch::Tensor loss = runner.Run(batch, inputs, 1);
    ESPALIER_CHECK(lookups.StartSum().ok() && lookups.Finish().ok(), "alone nothing travels");
    const double clip = ClipFactor(optimizer.GradientNorm() / elements, 1.0);
    optimizer.Apply({.learning_rate = 1e-3, .gradient_scale = clip / elements});
    measured.loss = loss.item<double>() / elements;
    cuda::Synchronize();
    const double seconds = absl::ToDoubleSeconds(RealClock().Monotonic() - start);
    if (step >= kWarmUp) measured.rates.push_back(elements / seconds);
  }
  std::sort(measured.rates.begin(), measured.rates.end());
  return measured;
}

int64_t PeakBytes(torch::Device device) {
  const auto memory = ReadDeviceMemory(device);
  return memory.has_value() ? memory->peak_bytes : ReadProcessMemory().value().peak_bytes;
}

nlohmann::json LineOf(const Options& options, const Measured& measured) {
  const std::vector<double>& rates = measured.rates;
  return {
      {"bench", OfAdapters(options) ? "lora_step" : "train_step"},
      {"who", "espalier"},
      {"setting", options.moments + " moments, recompute " + options.recompute},
      {"trained", measured.trained},
      {"shape", options.shape},
      {"batch", options.batch},
      {"time", options.time},
      {"precision", options.precision},
      {"device", options.device},
      {"threads", options.threads},
      {"tokens_per_second",
       {{"median", rates[rates.size() / 2]}, {"min", rates.front()}, {"max", rates.back()}}},
      {"peak_bytes", PeakBytes(torch::Device(options.device))},
      {"loss", measured.loss},
      {"ids", measured.ids},
      {"version", ESPALIER_VERSION},
      {"machine", ReadProcessor().value().model},
  };
}

nlohmann::json LineOf(const Options& options, const bench::MeasuredProduct& measured) {
  const bench::StepProduct& product = measured.product;
  return {
      {"bench", "product"},
      {"figure", product.name},
      {"precision", options.precision},
      {"m", product.shape.m},
      {"n", product.shape.n},
      {"k", product.shape.k},
      {"together", product.together},
      {"times", product.times},
      {"best", measured.best},
      {"best_gigaflops", product.Flops() / measured.seconds / 1e9},
      {"engine_gigaflops", product.Flops() / measured.engine_seconds / 1e9},
      {"milliseconds_of_step", product.times * measured.seconds * 1e3},
  };
}

void Run(const Options& options) {
  torch::set_num_threads(options.threads);
  const DecoderConfig config = ConfigOf(options);
  nlohmann::json line = LineOf(options, Measure(options, config));
  if (options.limit) {
    const int64_t rank = OfAdapters(options) ? bench::Adapters().rank : 0;
    const bench::StepLimit limit =
        bench::MeasureStepLimit(bench::ProductsOfStep(config, options.batch, options.time, rank),
                                options.precision == "bf16");
    for (const bench::MeasuredProduct& product : limit.products) {
      if (options.products) std::cout << LineOf(options, product).dump() << std::endl;
    }
    const double tokens = static_cast<double>(options.batch * options.time) / limit.seconds;
    line["limit_tokens_per_second"] = tokens;
    line["limit_gigaflops"] = limit.flops / limit.seconds / 1e9;
    line["share_of_limit"] = line["tokens_per_second"]["median"].get<double>() / tokens;
  }
  std::cout << line.dump() << std::endl;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  espalier::Run(espalier::Parse(argc, argv));
  return 0;
}
