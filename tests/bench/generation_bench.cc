// Measures generation of one process with random weights: tokens per second by the number of
// sequences that run at once, and the share of what reading the weights alone would allow, or on
// CUDA of what the memory would: bytes of weights and of what is kept, by the rate of a copy, as
// JSON lines. Run by `deploy/dev bench generation` and `h200_lora`.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/platform/platform.h"
#include "tests/bench/device_limits.h"
#include "tests/bench/lora_shapes.h"
#include "worker/formats/decoder_config.h"
#include "worker/generation/batch_generator.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch.h"

namespace espalier {
namespace {

using bench::Median;
using bench::Seconds;

struct Options {
  std::string shape = "17m";
  std::string precision = "fp32";
  std::string device = "cpu";
  int threads = 2;
  int64_t prompt = 64;
  int64_t tokens = 64;
  int rounds = 3;
  std::vector<int64_t> rows = {1, 4, 16};
};

Options Parse(int argc, char** argv) {
  Options options;
  CLI::App app("One process that generates, measured");
  app.add_option("--shape", options.shape)
      ->check(CLI::IsMember({"nano", "17m", "124m", "1b", "3b"}));
  app.add_option("--precision", options.precision)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--threads", options.threads);
  app.add_option("--prompt", options.prompt, "tokens of each prompt");
  app.add_option("--tokens", options.tokens, "new tokens of each sequence");
  app.add_option("--rounds", options.rounds);
  app.add_option("--rows", options.rows, "sequences at once");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

struct Measured {
  double prompt_seconds, token_seconds;  // all prompts; the median turn, which ends with its ids
};

Measured Measure(const Decoder& decoder, const Options& options, int64_t rows) {
  BatchGenerator batch = *BatchGenerator::Create(
      decoder, {.rows = rows, .positions = options.prompt + options.tokens + 1});
  for (int64_t row = 0; row < rows; ++row) {
    Sequence sequence;
    for (int64_t i = 0; i < options.prompt; ++i) {
      sequence.prompt.push_back(
          static_cast<int32_t>((row * 7919 + i * 31 + 1) % decoder.config().vocab_size));
    }
    sequence.max_new_tokens = options.tokens + 1;
    ESPALIER_CHECK(batch.Add(std::move(sequence)).ok(), "a sequence does not fit");
  }
  const auto turn = [&] {
    const auto ended = batch.Turn();
    ESPALIER_CHECK(ended.ok(), "a turn failed");
  };
  Measured measured{};
  measured.prompt_seconds = Seconds([&] {
    while (batch.waiting() > 0 || batch.prompt_count().computed < rows * options.prompt) turn();
  });
  std::vector<double> seconds;
  while (batch.running() == rows && static_cast<int64_t>(seconds.size()) < options.tokens / 2) {
    seconds.push_back(Seconds(turn));
  }
  measured.token_seconds = seconds.empty() ? 0 : Median(seconds);
  return measured;
}

// Reads all weights once.
double ReadSeconds(const Parameters& parameters) {
  return Seconds([&] {
    for (const Parameter& parameter : parameters.all()) parameter.leaf.sum().item<double>();
  });
}

// Bytes that a turn has to read: the weights once (a tied table is the head), and what is kept of
// each sequence, halfway through the turns that are measured.
double TurnBytes(const Decoder& decoder, const Parameters& parameters, const Options& options,
                 int64_t rows) {
  int64_t weights = 0;
  for (const Parameter& one : parameters.all()) {
    const bool looked_up = one.shape.is_embedding() && !decoder.config().tie_word_embeddings;
    if (!looked_up) weights += one.leaf.numel() * one.leaf.element_size();
  }
  const int64_t element = options.precision == "bf16" ? 2 : 4;
  return static_cast<double>(
      weights + KeyValueCache::Bytes(
                    decoder.config(),
                    {.rows = rows, .positions = options.prompt + options.tokens / 4}, element));
}

DecoderConfig ConfigOf(const Options& options) {
  if (options.shape == "3b") return bench::Llama3b();
  v1::ModelSpec spec;
  spec.set_preset(options.shape);
  if (options.shape != "1b") spec.set_vocab_size(8192);
  return DecoderConfigFromSpec(spec, 0).value();
}

int Main(const Options& options) {
  ESPALIER_CHECK(SetComputeThreads(options.threads, 1).ok(), "no such number of threads");
  const auto device = SelectDevice({.name = options.device});
  ESPALIER_CHECK(device.ok(), "no such device");
  DecoderConfig config = ConfigOf(options);
  config.max_position_embeddings =
      std::max(config.max_position_embeddings, options.prompt + options.tokens + 1);
  Parameters parameters = *Parameters::Create(
      config, {.device = device->device,
               .compute_type = options.precision == "bf16" ? torch::kBFloat16 : torch::kFloat});
  bench::FillQuickly(parameters);
  const Decoder decoder(config, parameters);
  Measure(decoder, options, 1);  // warm up
  const bool on_cuda = device->device.is_cuda();
  const double copy_rate = on_cuda ? bench::CopyRate(device->device) : 0;
  for (const int64_t rows : options.rows) {
    std::vector<double> prompts, turns, reads;
    for (int round = 0; round < options.rounds; ++round) {
      const Measured measured = Measure(decoder, options, rows);
      prompts.push_back(measured.prompt_seconds);
      turns.push_back(measured.token_seconds);
      reads.push_back(ReadSeconds(parameters));
    }
    const auto count = static_cast<double>(rows);
    nlohmann::json line = {
        {"bench", "generation"},
        {"shape", options.shape},
        {"precision", options.precision},
        {"device", options.device},
        {"threads", options.threads},
        {"rows", rows},
        {"prompt", options.prompt},
        {"tokens_per_second", count / Median(turns)},
        {"prompt_tokens_per_second", count * static_cast<double>(options.prompt) / Median(prompts)},
        {"weights_read_seconds", Median(reads)},
        {"turn_seconds", Median(turns)}};
    if (on_cuda) {
      const double bytes = TurnBytes(decoder, parameters, options, rows);
      line["turn_bytes"] = bytes;
      line["copy_bytes_per_second"] = copy_rate;
      line["share_of_memory"] = bytes / Median(turns) / copy_rate;
    }
    std::cout << line.dump() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) { return espalier::Main(espalier::Parse(argc, argv)); }
