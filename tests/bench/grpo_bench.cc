// Measures a step of group relative policy optimisation in one process, as the trainer makes it:
// completions of one prompt sampled and judged, passes, what slots keep, update of the adapters.
// One JSON line in the form of tests/bench/peers/pytorch_grpo.py, on CUDA beside a roofline: all
// weights read once for each new token at the rate of a copy, and the products of prompts and of
// learning at two fifths of the rate of large ones. Run by `deploy/dev bench h200_grpo`.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/config/job_file.h"
#include "common/config/recompute.h"
#include "common/platform/platform.h"
#include "tests/bench/device_limits.h"
#include "tests/bench/lora_shapes.h"
#include "tests/bench/token_ids.h"
#include "worker/collective/in_process.h"
#include "worker/optimizer/optimizer.h"
#include "worker/rollout/rollout_engine.h"
#include "worker/task/grpo.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch.h"
#include "worker/train/pass_runner.h"

namespace espalier {
namespace {

constexpr int kWarmUp = 3;             // steps that are not counted
constexpr double kProductShare = 0.4;  // of the rate of large products

struct Options {
  std::string shape = "3b";
  int64_t prompt = 350;
  int64_t tokens = 128;
  int64_t samples = 8;
  int64_t rows = 0;  // of a pass; 0: all
  double kl = 0.04;
  std::string recompute = "none";
  int steps = 7;
  int threads = 2;
  std::string precision = "fp32";
  std::string device = "cpu";
};

Options Parse(int argc, char** argv) {
  Options options;
  CLI::App app("One process, one step of GRPO, measured");
  app.add_option("--shape", options.shape)->check(CLI::IsMember({"nano", "3b"}));
  app.add_option("--prompt", options.prompt, "tokens of the prompt");
  app.add_option("--tokens", options.tokens, "of each completion: none ends before");
  app.add_option("--samples", options.samples, "completions of the prompt");
  app.add_option("--rows", options.rows, "completions of a pass; 0: all");
  app.add_option("--kl", options.kl, "weight of the divergence; 0: no reference");
  app.add_option("--recompute", options.recompute)->check(CLI::IsMember({"none", "all"}));
  app.add_option("--steps", options.steps);
  app.add_option("--threads", options.threads);
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

DecoderConfig ConfigOf(const Options& options) {
  if (options.shape == "3b") return bench::Llama3b();
  v1::ModelSpec spec;
  spec.set_preset(options.shape);
  spec.set_vocab_size(8192);
  spec.set_max_position_embeddings(static_cast<int32_t>(options.prompt + options.tokens));
  return DecoderConfigFromSpec(spec, 0).value();
}

v1::JobSpec SpecOf(const Options& options) {
  v1::JobSpec spec;
  spec.mutable_data()->set_sequence_length(static_cast<int32_t>(options.prompt + options.tokens));
  v1::TrainSpec& train = *spec.mutable_train();
  train.set_task(v1::TASK_GRPO);
  train.set_steps(options.steps + kWarmUp);
  train.set_global_batch(static_cast<int32_t>(options.samples));
  train.add_recompute(options.recompute);
  train.mutable_rollout()->set_samples(static_cast<int32_t>(options.samples));
  train.mutable_rollout()->set_max_new_tokens(static_cast<int32_t>(options.tokens));
  train.mutable_grpo()->set_kl(options.kl);
  FillJobDefaults(spec);
  return spec;
}

// Writes a word for each id, and has none that ends a text.
class EndlessWords final : public Tokenizer {
 public:
  explicit EndlessWords(int64_t vocabulary) : Tokenizer("words"), vocabulary_(vocabulary) {}
  int64_t vocab_size() const override { return vocabulary_; }
  int32_t end_of_text() const override { return -1; }
  std::optional<int32_t> IdOf(absl::string_view) const override { return std::nullopt; }
  TokenKind KindOf(int32_t) const override { return TokenKind::kText; }
  absl::Status Encode(absl::string_view, std::vector<int32_t>&, EncodeOptions) const override {
    return absl::UnimplementedError("no text is encoded here");
  }
  absl::StatusOr<absl::string_view> Piece(int32_t) const override { return " word"; }
  std::string Json() const override { return {}; }
  std::string ConfigJson() const override { return {}; }

 private:
  const int64_t vocabulary_;
};

// Accepts every second completion: what random weights write could earn nothing.
class EverySecond final : public Verifier {
 public:
  absl::StatusOr<std::vector<Judgement>> Judge(absl::Span<const Completion> completions,
                                               const TrainingMoment&) override {
    std::vector<Judgement> judgements(completions.size());
    for (Judgement& one : judgements) one.Add("correct", static_cast<double>(judged_++ % 2));
    return judgements;
  }

 private:
  int64_t judged_ = 0;
};

// Of a device, a second.
struct Rates {
  double copies = 0;    // bytes
  double products = 0;  // floating-point operations
};

// Seconds of a step.
struct Spent {
  double rollout = 0, learn = 0;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        device_(options.device),
        config_(ConfigOf(options)),
        spec_(SpecOf(options)),
        ids_(bench::TokenIds(options.prompt, config_.vocab_size, /*seed=*/1)),
        tokenizer_(config_.vocab_size),
        parameters_(
            Parameters::Create(config_, bench::AdaptersAlone(device_, ComputeType())).value()),
        decoder_(config_, parameters_),
        optimizer_(AdamW::Create(spec_.train().optimizer(), parameters_).value()),
        transfers_(device_),
        alone_(InProcessGroup(1, absl::Minutes(1))),
        slots_(device_) {
    bench::FillQuickly(parameters_);
    decoder_.set_recompute(RecomputedLayers(spec_.train(), config_.layers).value());
    const auto open = [this](const auto&) { return Source(); };
    task_ = Grpo::Create(spec_, {{{0, {ids_.begin(), ids_.end()}, "{}"}}, {}, {}}, open).value();
    practice_ = task_->MakePractice({.context = Alone()}).value();
    ESPALIER_CHECK(slots_.Keep(task_->Keeps(spec_, config_)).ok(), "memory for the slots");
    runner_ = std::make_unique<PassRunner>(*task_, decoder_, parameters_);
  }

  std::vector<Spent> Run() {
    std::vector<Spent> spent;
    for (int64_t step = 0; step < options_.steps + kWarmUp; ++step) {
      const Spent one = RunStep(Step(step));
      if (step >= kWarmUp) spent.push_back(one);
    }
    return spent;
  }

  // Of the last step, mean of a token.
  double loss() const { return loss_; }
  int64_t trained() const { return parameters_.trained_elements(); }
  std::string ids() const { return bench::DigestOf(ids_); }

  // Seconds that a step would take of a device that does so much a second.
  Spent Roofline(const Rates& rates) const {
    double numbers = 0, bytes = 0;
    for (const Parameter& one : parameters_.all()) {
      const bool looked_up = one.shape.is_embedding() && !config_.tie_word_embeddings;
      if (looked_up || one.shape.is_adapter()) continue;
      numbers += static_cast<double>(one.leaf.numel());
      bytes += static_cast<double>(one.leaf.numel() * one.leaf.element_size());
    }
    const auto prompts = static_cast<double>(options_.samples * options_.prompt);
    const auto completions = static_cast<double>(options_.samples * options_.tokens);
    // Forward; back, through frozen weights; by the reference; computed again.
    const double times = 4 + (options_.kl > 0 ? 2 : 0) + (options_.recompute == "all" ? 2 : 0);
    const double products = kProductShare * rates.products;
    return {static_cast<double>(options_.tokens) * bytes / rates.copies +
                2 * numbers * prompts / products,
            times * numbers * (prompts + completions) / products};
  }

 private:
  torch::ScalarType ComputeType() const {
    return options_.precision == "bf16" ? torch::kBFloat16 : torch::kFloat;
  }
  RankContext Alone() { return {*alone_[0], RealClock(), progress_}; }

  absl::StatusOr<std::unique_ptr<RolloutSource>> Source() {
    return std::make_unique<RolloutEngine>(
        Alone(), tokenizer_, std::make_unique<EverySecond>(),
        RolloutEngine::Options{.limits = {.max_new_tokens = options_.tokens}});
  }

  Spent RunStep(Step step) {
    Spent spent;
    spent.rollout = bench::Seconds([&] {
      ESPALIER_CHECK(practice_->Prepare(step, decoder_, {}, slots_).value(), "called away");
      cuda::Synchronize();
    });
    spent.learn = bench::Seconds([&] {
      Learn(step);
      cuda::Synchronize();
    });
    return spent;
  }

  void Learn(Step step) {
    const int64_t all = options_.samples, most = options_.rows > 0 ? options_.rows : all;
    const Samples samples = task_->Continue(step, {0, all}, {}, slots_).value();
    const auto tokens = static_cast<double>(task_->LossTokens(samples, {0, all}));
    ESPALIER_CHECK(tokens == static_cast<double>(all * options_.tokens), "one ended early");
    torch::Tensor loss = torch::zeros({}, torch::TensorOptions(device_));
    struct Left {
      SlotRange rows;
      std::vector<torch::Tensor> results;
    };
    std::vector<Left> left;
    for (int64_t begin = 0; begin < all; begin += most) {
      const SlotRange rows{begin, std::min(begin + most, all)};
      const TokenBatch batch = task_->Batch(samples, rows, transfers_);
      loss = loss + runner_->Run(batch, {}, 1);
      left.push_back({rows, batch.results});
    }
    for (const Left& one : left) {
      task_->Keep(decoder_, step, samples, one.rows, one.results, slots_);
    }
    const double clip = ClipFactor(optimizer_.GradientNorm() / tokens, 1.0);
    optimizer_.Apply({.learning_rate = 2e-5, .gradient_scale = clip / tokens});
    loss_ = loss.item<double>() / tokens;
  }

  const Options options_;
  const torch::Device device_;
  const DecoderConfig config_;
  const v1::JobSpec spec_;
  const std::vector<int64_t> ids_;
  const EndlessWords tokenizer_;
  Parameters parameters_;
  Decoder decoder_;
  AdamW optimizer_;
  Transfers transfers_;
  std::vector<std::unique_ptr<Collective>> alone_;
  ProgressBoard progress_;
  SlotStates slots_;
  std::unique_ptr<Task> task_;
  std::unique_ptr<Practice> practice_;
  std::unique_ptr<PassRunner> runner_;
  double loss_ = 0;
};

int64_t PeakBytes(torch::Device device) {
  const auto memory = ReadDeviceMemory(device);
  return memory.has_value() ? memory->peak_bytes : ReadProcessMemory().value().peak_bytes;
}

nlohmann::json LineOf(const Options& options, const Bench& bench, const std::vector<Spent>& spent) {
  std::vector<double> rollout, learn, rates;
  for (const Spent& one : spent) {
    rollout.push_back(one.rollout);
    learn.push_back(one.learn);
    rates.push_back(static_cast<double>(options.samples * options.tokens) /
                    (one.rollout + one.learn));
  }
  const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
  return {
      {"bench", "grpo_step"},
      {"who", "espalier"},
      {"setting", absl::StrCat("kl ", options.kl, ", recompute ", options.recompute)},
      {"trained", bench.trained()},
      {"shape", options.shape},
      {"prompt", options.prompt},
      {"tokens", options.tokens},
      {"samples", options.samples},
      {"precision", options.precision},
      {"device", options.device},
      {"threads", options.threads},
      {"tokens_per_second", {{"median", bench::Median(rates)}, {"min", *least}, {"max", *most}}},
      {"rollout_seconds", bench::Median(rollout)},
      {"learn_seconds", bench::Median(learn)},
      {"peak_bytes", PeakBytes(torch::Device(options.device))},
      {"loss", bench.loss()},
      {"ids", bench.ids()},
      {"version", ESPALIER_VERSION},
      {"machine", ReadProcessor().value().model},
  };
}

void Run(const Options& options) {
  torch::set_num_threads(options.threads);
  Bench bench(options);
  const std::vector<Spent> spent = bench.Run();
  nlohmann::json line = LineOf(options, bench, spent);
  if (const torch::Device device(options.device); device.is_cuda()) {
    const Rates rates{bench::CopyRate(device), bench::ProductRate(device, torch::kBFloat16)};
    const Spent limit = bench.Roofline(rates);
    line["copy_bytes_per_second"] = rates.copies;
    line["product_flops_per_second"] = rates.products;
    line["limit_rollout_seconds"] = limit.rollout;
    line["limit_learn_seconds"] = limit.learn;
    line["limit_tokens_per_second"] =
        static_cast<double>(options.samples * options.tokens) / (limit.rollout + limit.learn);
  }
  std::cout << line.dump() << std::endl;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  espalier::Run(espalier::Parse(argc, argv));
  return 0;
}
