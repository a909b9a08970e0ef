// Measures the training step of a tiny recursive model in one process, as the trainer makes it: the
// samples of the slots, passes, what the slots keep, update. One JSON line in the form of
// tests/bench/peers/pytorch_trm.py. Run by `deploy/dev bench trm`.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/platform/platform.h"
#include "tests/bench/token_ids.h"
#include "worker/collective/in_process.h"
#include "worker/data/example_table.h"
#include "worker/data/prefetch.h"
#include "worker/model/recursive_model.h"
#include "worker/ops/cuda_ops.h"
#include "worker/optimizer/optimizer.h"
#include "worker/sync/lookup_exchange.h"
#include "worker/task/deep_supervision.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch.h"
#include "worker/train/pass_runner.h"

namespace espalier {
namespace {

constexpr int kWarmUp = 3;  // steps that are not counted

struct Options {
  std::string shape = "puzzle";
  int64_t batch = 8;
  int64_t rows = 0;  // of a pass; 0: all
  int steps = 5;
  int threads = 2;
  std::string precision = "fp32";
  std::string device = "cpu";
};

Options Parse(int argc, char** argv) {
  Options options;
  CLI::App app("One process, one training step of a tiny recursive model, measured");
  app.add_option("--shape", options.shape)->check(CLI::IsMember({"puzzle", "chat"}));
  app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--batch", options.batch);
  app.add_option("--rows", options.rows, "Samples of a pass; 0: all");
  app.add_option("--steps", options.steps);
  app.add_option("--threads", options.threads);
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"fp32", "bf16"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

bool IsPuzzle(const Options& options) { return options.shape == "puzzle"; }
int64_t PositionsOf(const Options& options) { return IsPuzzle(options) ? 81 : 512; }

// Those of configs/jobs/trm-puzzle.yaml and trm-chat.yaml.
DecoderConfig ConfigOf(const Options& options) {
  const bool puzzle = IsPuzzle(options);
  v1::ModelSpec spec;
  spec.set_architecture("trm");
  spec.set_vocab_size(puzzle ? 11 : 50266);
  spec.set_hidden_size(puzzle ? 512 : 384);
  spec.set_num_hidden_layers(puzzle ? 2 : 4);
  spec.set_num_attention_heads(puzzle ? 8 : 12);
  spec.set_max_position_embeddings(static_cast<int32_t>(PositionsOf(options)));
  v1::RecursionSpec& recursion = *spec.mutable_recursion();
  recursion.set_h_cycles(puzzle ? 3 : 1);
  recursion.set_l_cycles(puzzle ? 6 : 1);
  recursion.set_halt_max_steps(puzzle ? 16 : 1);
  recursion.set_halt_exploration(puzzle ? 0.1 : 0);
  recursion.set_causal(!puzzle);
  recursion.set_positions("rope");
  recursion.set_probabilities(puzzle ? "stablemax" : "softmax");
  recursion.set_expansion(4);
  return DecoderConfigFromSpec(spec, 0).value();
}

// The samples of a step, which are the same in all, and their ids.
struct Table {
  std::vector<int64_t> ids;
  std::shared_ptr<const SampleTable> samples;
};

// Prompts of 81 ids, each with a completion of 81 and an end; or texts, which follow each other.
Table TableOf(const Options& options, int64_t vocabulary) {
  const int64_t positions = PositionsOf(options);
  if (!IsPuzzle(options)) {
    std::vector<int64_t> ids = bench::TokenIds(options.batch * positions + 1, vocabulary, 1);
    auto row = std::make_shared<VectorTokenRow>(ids);
    return {std::move(ids), std::make_shared<WindowTable>(std::move(row), positions)};
  }
  std::vector<int64_t> ids = bench::TokenIds(2 * options.batch * positions, vocabulary, 1);
  std::vector<int64_t> tokens;
  std::vector<ExampleSpan> spans;
  for (int64_t i = 0; i < options.batch; ++i) {
    const auto from = ids.begin() + 2 * i * positions;
    const auto begin = static_cast<int64_t>(tokens.size());
    tokens.insert(tokens.end(), from, from + 2 * positions);
    tokens.push_back(0);
    spans.push_back({begin, begin + positions, begin + 2 * positions + 1});
  }
  absl::StatusOr<ExampleTable> table =
      ExampleTable::Create(std::make_shared<VectorTokenRow>(std::move(tokens)),
                           std::make_shared<VectorExampleIndex>(std::move(spans)),
                           {.sequence_length = 2 * positions, .end_of_text = 0});
  return {std::move(ids), std::make_shared<ExampleTable>(std::move(table).value())};
}

// What the steps gave: tokens per second, ascending, of all and of passes and update alone.
struct Measured {
  std::vector<double> rates, rates_of_passes;
  double loss = 0;  // mean of a sample
  std::string ids;
  int64_t trained = 0;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        device_(options.device),
        config_(ConfigOf(options)),
        table_(TableOf(options, config_.vocab_size)),
        task_(IsPuzzle(options) ? DeepSupervision::Kind::kPuzzle : DeepSupervision::Kind::kText,
              PositionsOf(options), table_.samples, nullptr, /*seed=*/1),
        source_(
            table_.samples,
            SampleOrder::Create({.samples = options.batch, .global_batch = options.batch}).value(),
            {}),
        parameters_(
            Parameters::Create(config_, Parameters::ForTraining(device_, Narrow())).value()),
        transfers_(device_),
        slots_(device_) {
    parameters_.Initialize(1, config_.initializer_range);
    model_ = MakeModel(config_, parameters_);
    runner_ = std::make_unique<PassRunner>(task_, *model_, parameters_);
    v1::JobSpec spec;
    spec.mutable_train()->set_global_batch(static_cast<int32_t>(options.batch));
    ESPALIER_CHECK(slots_.Keep(task_.Keeps(spec, config_)).ok(), "memory for the slots");
    v1::OptimizerSpec adamw;
    adamw.set_beta1(0.9);
    adamw.set_beta2(0.95);
    adamw.set_eps(1e-8);
    adamw.set_weight_decay(0.1);
    optimizer_ = std::make_unique<AdamW>(AdamW::Create(adamw, parameters_).value());
    alone_ = InProcessGroup(1, absl::Minutes(1));
    lookups_ = std::make_unique<LookupExchange>(*alone_[0], parameters_, WireType::kFp32);
  }

  Measured Run() {
    Measured measured;
    measured.ids = bench::DigestOf(table_.ids);
    measured.trained = parameters_.trained_elements();
    const auto tokens = static_cast<double>(options_.batch * PositionsOf(options_));
    for (int64_t step = 0; step < options_.steps + kWarmUp; ++step) {
      const absl::Duration begin = RealClock().Monotonic();
      const double passes = Step(espalier::Step(step), measured.loss);
      const double all = absl::ToDoubleSeconds(RealClock().Monotonic() - begin);
      if (step < kWarmUp) continue;
      measured.rates.push_back(tokens / all);
      measured.rates_of_passes.push_back(tokens / passes);
    }
    std::sort(measured.rates.begin(), measured.rates.end());
    std::sort(measured.rates_of_passes.begin(), measured.rates_of_passes.end());
    return measured;
  }

 private:
  torch::ScalarType Narrow() const {
    return options_.precision == "bf16" ? torch::kBFloat16 : torch::kFloat;
  }

  // Seconds of passes and update.
  double Step(espalier::Step step, double& mean_loss) {
    const SlotRange all{0, options_.batch};
    const std::shared_ptr<const Samples> fresh = source_.Fetch(step, all).value();
    const Samples samples = task_.Continue(step, all, *fresh, slots_).value();
    const int64_t rows = options_.rows > 0 ? options_.rows : options_.batch;
    transfers_.KeepNewOnly();
    struct Pass {
      SlotRange rows;
      TokenBatch batch;
    };
    std::vector<Pass> passes;
    for (int64_t begin = 0; begin < options_.batch; begin += rows) {
      const SlotRange range{begin, std::min(begin + rows, options_.batch)};
      passes.push_back({range, task_.Batch(samples, range, transfers_)});
      passes.back().batch.results_known = [this] { transfers_.Follow(); };
    }
    cuda::Synchronize();
    const absl::Duration begin = RealClock().Monotonic();
    const PassInputs inputs{.lookup = lookups_->Begin(samples.tokens).value()};
    torch::Tensor loss = torch::zeros({}, torch::TensorOptions(device_));
    for (Pass& pass : passes) {
      loss = loss + runner_->Run(pass.batch, inputs, 1);
      task_.Send(step, samples, pass.rows, pass.batch.results, slots_, transfers_);
    }
    ESPALIER_CHECK(lookups_->StartSum().ok() && lookups_->Finish().ok(), "alone nothing travels");
    optimizer_->Apply(
        {.learning_rate = 1e-4, .gradient_scale = 1 / static_cast<double>(options_.batch)});
    mean_loss = loss.item<double>() / static_cast<double>(options_.batch);
    cuda::Synchronize();
    const double seconds = absl::ToDoubleSeconds(RealClock().Monotonic() - begin);
    for (const Pass& pass : passes) {
      task_.Keep(*model_, step, samples, pass.rows, pass.batch.results, slots_);
    }
    return seconds;
  }

  const Options options_;
  const torch::Device device_;
  const DecoderConfig config_;
  const Table table_;
  const DeepSupervision task_;
  PrefetchedSamples source_;
  Parameters parameters_;
  Transfers transfers_;
  SlotStates slots_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<PassRunner> runner_;
  std::unique_ptr<AdamW> optimizer_;
  std::vector<std::unique_ptr<Collective>> alone_;
  std::unique_ptr<LookupExchange> lookups_;
};

int64_t PeakBytes(torch::Device device) {
  const auto memory = ReadDeviceMemory(device);
  return memory.has_value() ? memory->peak_bytes : ReadProcessMemory().value().peak_bytes;
}

nlohmann::json Spread(const std::vector<double>& rates) {
  return {{"median", rates[rates.size() / 2]}, {"min", rates.front()}, {"max", rates.back()}};
}

void Run(const Options& options) {
  torch::set_num_threads(options.threads);
  Bench bench(options);
  const Measured measured = bench.Run();
  const nlohmann::json line = {
      {"bench", "trm_step"},
      {"who", "espalier"},
      {"setting", "as trained"},
      {"trained", measured.trained},
      {"shape", options.shape},
      {"batch", options.batch},
      {"time", PositionsOf(options)},
      {"precision", options.precision},
      {"device", options.device},
      {"threads", options.threads},
      {"tokens_per_second", Spread(measured.rates)},
      {"passes_tokens_per_second", Spread(measured.rates_of_passes)},
      {"peak_bytes", PeakBytes(torch::Device(options.device))},
      {"loss", measured.loss},
      {"ids", measured.ids},
      {"version", ESPALIER_VERSION},
      {"machine", ReadProcessor().value().model},
  };
  std::cout << line.dump() << std::endl;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  espalier::Run(espalier::Parse(argc, argv));
  return 0;
}
