// Measures the training step of ranks under mpirun: tokens per second, and how much of the exchange
// is hidden behind the backward pass. Rank 0 prints one JSON line. Run by bench_ddp.sh and
// bench_overlap.sh.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "tests/bench/token_ids.h"
#include "worker/collective/mpi_collective.h"
#include "worker/model/decoder.h"
#include "worker/optimizer/optimizer.h"
#include "worker/sync/gradient_exchange.h"
#include "worker/sync/lookup_exchange.h"
#include "worker/tensor/torch.h"

namespace espalier {
namespace {

struct Options {
  std::string bench = "ddp";
  std::string shape = "17m";
  std::string wire = "fp32";
  std::string precision = "fp32";
  int64_t vocab = 0;
  std::string networks = "127.0.0.0/8";
  int64_t global_batch = 8;
  int64_t time = 256;
  int steps = 6;
  int threads = 1;
};

Options Parse(int argc, char** argv) {
  Options options;
  CLI::App app("Ranks under mpirun, one training step, measured");
  app.add_option("--bench", options.bench, "name in the figures");
  app.add_option("--shape", options.shape)->check(CLI::IsMember({"17m", "124m"}));
  app.add_option("--wire", options.wire)->check(CLI::IsMember({"fp32", "bf16", "int8"}));
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--vocab", options.vocab, "token ids; 0: as the peer's");
  app.add_option("--networks", options.networks, "CIDR of MPI's network");
  app.add_option("--global-batch", options.global_batch);
  app.add_option("--time", options.time);
  app.add_option("--steps", options.steps);
  app.add_option("--threads", options.threads, "of each rank");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

// After an error of MPI the process must not end in order.
void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << "ddp_probe: " << status << std::endl;
  _exit(1);
}

std::unique_ptr<MpiCollective> Join(const Options& options) {
  MpiOptions mpi;
  mpi.transport = {.links = 4, .networks = options.networks, .socket_buffer_bytes = 4 << 20};
  mpi.failure_timeout = absl::Minutes(1);
  absl::StatusOr<std::unique_ptr<MpiCollective>> started = MpiCollective::Start(mpi, RealClock());
  Check(started.status());
  return *std::move(started);
}

// The shapes of the peer: 17m tied with 8192 ids, 124m untied with 50304.
DecoderConfig ConfigOf(const Options& options) {
  v1::ModelSpec spec;
  spec.set_preset(options.shape);
  spec.set_vocab_size(options.vocab > 0 ? options.vocab : options.shape == "17m" ? 8192 : 50304);
  spec.set_tie_word_embeddings(options.shape == "17m");
  return DecoderConfigFromSpec(spec, 0).value();
}

v1::OptimizerSpec Adam() {
  v1::OptimizerSpec spec;
  spec.set_beta1(0.9);
  spec.set_beta2(0.95);
  spec.set_eps(1e-8);
  spec.set_weight_decay(0.1);
  return spec;
}

// Wall seconds of one step's parts.
struct StepTimes {
  double backward = 0;
  double wait = 0;  // for the exchange, after the backward pass
  double step = 0;
};

// One rank's model, optimizer and exchange.
class TrainingRank {
 public:
  TrainingRank(const Options& options, Collective& collective)
      : collective_(collective),
        config_(ConfigOf(options)),
        parameters_(Parameters::Create(
                        config_, Parameters::ForTraining(torch::kCPU, options.precision == "bf16"
                                                                          ? torch::kBFloat16
                                                                          : torch::kFloat))
                        .value()),
        decoder_(config_, parameters_),
        optimizer_(AdamW::Create(Adam(), parameters_).value()),
        exchange_(collective, {parameters_.flat_gradient(), host_},
                  BucketEnds(parameters_, parameters_.elements_before_embedding(), 1 << 20),
                  WireFor(options)),
        lookups_(collective, parameters_,
                 options.wire == "fp32" ? WireType::kFp32 : WireType::kBf16) {
    parameters_.Initialize(1, config_.initializer_range);
    // Each rank its rows of one global batch, as the peer's ranks take them.
    const int64_t rows = options.global_batch / collective.world_size();
    const int64_t count = rows * (options.time + 1);
    const std::vector<int64_t> all =
        bench::TokenIds(count * collective.world_size(), config_.vocab_size, /*seed=*/1);
    digest_ = bench::DigestOf(all);
    const auto first = all.begin() + collective.rank().value() * count;
    tokens_.assign(first, first + count);
    const torch::Tensor tokens =
        torch::from_blob(tokens_.data(), {rows, options.time + 1}, torch::kLong);
    ids_ = tokens.slice(1, 0, options.time).contiguous();
    targets_ = tokens.slice(1, 1).contiguous();
    scale_ = 1.0 / static_cast<double>(ids_.numel() * collective.world_size());
  }

  const std::string& digest() const { return digest_; }

  // `overlap`: buckets start while the backward pass runs; else after it.
  StepTimes Step(bool overlap) {
    StepTimes times;
    const absl::Duration begin = RealClock().Monotonic();
    PassInputs inputs;
    if (overlap) {
      inputs.gradients_final = [this](int64_t end) { exchange_.GradientsFinal(end); };
    }
    absl::StatusOr<EmbeddingRows> lookup = lookups_.Begin(tokens_);
    Check(lookup.status());
    inputs.lookup = *std::move(lookup);
    const torch::Tensor loss = decoder_.LossSum(ids_, targets_, {}, inputs);
    const absl::Duration forward = RealClock().Monotonic();
    loss.backward();
    const absl::Duration backward = RealClock().Monotonic();
    if (!overlap) Meet();
    const absl::Duration met = RealClock().Monotonic();
    Check(exchange_.StartRest());
    Check(lookups_.StartSum());
    Check(exchange_.Finish());
    Check(lookups_.Finish());
    const absl::Duration exchanged = RealClock().Monotonic();
    const double clip = ClipFactor(optimizer_.GradientNorm() * scale_, 1.0);
    optimizer_.Apply({.learning_rate = 1e-3, .gradient_scale = scale_ * clip});
    times.backward = absl::ToDoubleSeconds(backward - forward);
    times.wait = absl::ToDoubleSeconds(exchanged - met);
    times.step = absl::ToDoubleSeconds(RealClock().Monotonic() - begin);
    return times;
  }

 private:
  GradientExchange::Wire WireFor(const Options& options) {
    if (options.wire == "fp32") return {};
    if (options.wire == "bf16") return {WireType::kBf16};
    Check(residual_.Keep(parameters_.elements_before_embedding()));
    return {WireType::kInt8, &residual_};
  }
  // So that the exchange alone is timed from the moment at which both have come.
  void Meet() {
    const std::byte mine{};
    std::vector<std::byte> all(collective_.world_size());
    Check(collective_.AllGather({&mine, 1}, absl::MakeSpan(all)));
  }

  Collective& collective_;
  const DecoderConfig config_;
  Parameters parameters_;
  Decoder decoder_;
  AdamW optimizer_;
  GradientResidual residual_;
  FlatTensor host_;  // not used on the CPU
  GradientExchange exchange_;
  LookupExchange lookups_;
  std::string digest_;  // of the global batch's ids
  std::vector<int64_t> tokens_;
  torch::Tensor ids_, targets_;
  double scale_ = 1;
};

double Median(const std::vector<StepTimes>& steps, double StepTimes::*part) {
  std::vector<double> values;
  for (const StepTimes& step : steps) values.push_back(step.*part);
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Print(const Options& options, int ranks, const std::string& digest,
           const std::vector<StepTimes>& apart, const std::vector<StepTimes>& together) {
  std::vector<double> rates;
  for (const StepTimes& step : together) {
    rates.push_back(static_cast<double>(options.global_batch * options.time) / step.step);
  }
  std::sort(rates.begin(), rates.end());
  const double alone = Median(apart, &StepTimes::wait), wait = Median(together, &StepTimes::wait);
  const nlohmann::json line = {
      {"bench", options.bench},
      {"who", "espalier"},
      {"precision", options.precision},
      {"setting", "gradients as " + options.wire},
      {"vocab", options.vocab},
      {"shape", options.shape},
      {"global_batch", options.global_batch},
      {"time", options.time},
      {"ranks", ranks},
      {"threads", options.threads},
      {"ids", digest},
      {"tokens_per_second",
       {{"median", rates[rates.size() / 2]}, {"min", rates.front()}, {"max", rates.back()}}},
      {"backward_alone_seconds", Median(apart, &StepTimes::backward)},
      {"backward_seconds", Median(together, &StepTimes::backward)},
      {"exchange_alone_seconds", alone},
      {"exchange_wait_seconds", wait},
      {"exchange_hidden_ratio", 1 - wait / alone},
      {"step_without_overlap_seconds", Median(apart, &StepTimes::step)},
      {"step_seconds", Median(together, &StepTimes::step)},
      {"version", ESPALIER_VERSION}};
  std::cout << line.dump() << std::endl;
}

int Run(const Options& options) {
  at::set_num_threads(options.threads);
  const std::unique_ptr<MpiCollective> collective = Join(options);
  TrainingRank trainer(options, *collective);
  for (int i = 0; i < 3; ++i) trainer.Step(true);
  std::vector<StepTimes> apart, together;
  for (int i = 0; i < options.steps; ++i) {
    apart.push_back(trainer.Step(false));
    together.push_back(trainer.Step(true));
  }
  if (collective->rank() == Rank(0)) {
    Print(options, collective->world_size(), trainer.digest(), apart, together);
  }
  Check(collective->Finish(absl::Minutes(1)));
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) { return espalier::Run(espalier::Parse(argc, argv)); }
