// Passes of the shapes that jobs have, without their memory: what is within the rules for a tiny
// model may not be for a large one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/file_system.h"
#include "common/config/cluster_file.h"
#include "common/config/job_file.h"
#include "common/config/recompute.h"
#include "nlohmann/json.hpp"
#include "tests/worker/mac/mac_device.h"
#include "worker/memory/memory_advice.h"
#include "worker/model/decoder.h"
#include "worker/state/replica.h"
#include "worker/task/deep_supervision.h"
#include "worker/tensor/device.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

using torch::Tensor;

Tensor Ids(int64_t rows, int64_t length) {
  return torch::zeros({rows, length}, torch::kLong).to(MacDevice::device());
}

// A pass forward and backward of so many sequences; `packed`: which examples share.
void RunPass(const DecoderConfig& config, const Parameters::Options& options, int64_t rows,
             int64_t length, double dropout, const std::vector<bool>& recompute,
             bool packed = false) {
  Parameters parameters = Parameters::Create(config, options).value();
  PassInputs inputs;
  if (packed) inputs.shared = {Ids(rows, length), length};
  if (parameters.embedding() == EmbeddingGradient::kRowsApart) {
    const int64_t looked_up = std::min(config.vocab_size, rows * length);
    inputs.lookup = {torch::zeros({looked_up, config.hidden_size}).to(MacDevice::device()),
                     torch::zeros({config.vocab_size}, torch::kLong).to(MacDevice::device())};
    inputs.lookup.rows.set_requires_grad(true);
    inputs.lookup.rows.mutable_grad() = torch::zeros_like(inputs.lookup.rows);
  }
  if (dropout > 0) {
    inputs.dropout = {.rate = dropout,
                      .of_row = torch::zeros({rows}, torch::kLong).to(MacDevice::device()),
                      .adapter_rate = options.lora ? dropout : 0};
  }
  const std::unique_ptr<Model> model = MakeModel(config, parameters);
  model->set_recompute(recompute);
  if (config.architecture != Architecture::kTrm) {
    DecoderOf(*model).LossSum(Ids(rows, length), Ids(rows, length), {}, inputs).backward();
    return;
  }
  const DeepSupervision task(DeepSupervision::Kind::kText, length, nullptr, nullptr, /*seed=*/0);
  task.LossSum(*model, task.MadeUpBatch(rows, length, MacDevice::device()), inputs).backward();
}

void RunPass(const DecoderConfig& config, torch::ScalarType type, int64_t rows, int64_t length,
             double dropout, const std::vector<bool>& recompute, bool packed = false) {
  RunPass(config, Parameters::ForTraining(MacDevice::device(), type), rows, length, dropout,
          recompute, packed);
}

DecoderConfig ConfigOf(const std::string& preset) {
  v1::ModelSpec spec;
  spec.set_preset(preset);
  return DecoderConfigFromSpec(spec, /*data_vocab_size=*/32000).value();
}

struct Shape {
  const char* preset;
  int64_t rows, length;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.preset << " of " << shape.rows << " x " << shape.length;
}

class ShapeOnAMac : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Jobs, ShapeOnAMac,
                         testing::Values(Shape{"17m", 4096, 256}, Shape{"124m", 512, 1024},
                                         Shape{"1b", 32, 1024}, Shape{"1b", 64, 2048},
                                         Shape{"gpt2", 512, 1024}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.preset, "Of", info.param.rows, "x",
                                               info.param.length);
                         });

// As many sequences as a job has there, or as one pass may have on MPS.
TEST_P(ShapeOnAMac, BreaksNoRule) {
  const int64_t length = GetParam().length;
  const DecoderConfig config = ConfigOf(GetParam().preset);
  const int64_t rows = std::min(GetParam().rows, MostSequences(config, length, torch::kMPS));
  const MacDevice mac(MacDevice::Mode::kShapesOnly);
  for (const torch::ScalarType type : {torch::kFloat, torch::kBFloat16}) {
    for (const bool recompute : {false, true}) {
      for (const bool packed : {false, true}) {
        const absl::Status done = CatchTorch("a pass", [&] {
          RunPass(config, type, rows, length, recompute ? 0.1 : 0,
                  std::vector<bool>(static_cast<size_t>(config.layers), recompute), packed);
        });
        EXPECT_TRUE(done.ok()) << done;
      }
    }
  }
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
}

v1::JobSpec JobOf(const std::string& file) {
  return LoadJobFile(absl::StrCat(ESPALIER_SOURCE_DIR "/configs/jobs/", file)).value();
}

// Vocabulary, widths, layers, heads and those of keys, each of 128 or so many channels.
DecoderConfig ConfigOf(int64_t vocab_size, int64_t hidden_size, int64_t intermediate_size,
                       int64_t layers, int64_t heads, int64_t kv_heads, int64_t head_dim = 128) {
  DecoderConfig config;
  config.vocab_size = vocab_size;
  config.hidden_size = hidden_size;
  config.intermediate_size = intermediate_size;
  config.layers = layers;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = head_dim;
  return config;
}

// Of the models that shipped jobs start from, by the names of their folders.
DecoderConfig ConfigOfFolder(const std::string& name) {
  if (name == "checkpoint") return ConfigOf("17m");   // of 17m.yaml
  if (name == "pretrained") return ConfigOf("nano");  // of tour-pretrain.yaml
  if (name == "start") {                              // of those that learn from rewards
    return DecoderConfigFromSpec(JobOf("rft-nano-start.yaml").model(), /*data_vocab_size=*/32000)
        .value();
  }
  if (name == "SmolLM2-360M-Instruct") return ConfigOf(49152, 960, 2560, 32, 15, 5, 64);
  if (absl::StartsWith(name, "Qwen2.5-")) {
    DecoderConfig qwen = absl::StrContains(name, "-3B") ? ConfigOf(151936, 2048, 11008, 36, 16, 2)
                                                        : ConfigOf(151936, 1536, 8960, 28, 12, 2);
    qwen.attention_bias = true;
    return qwen;
  }
  EXPECT_EQ(name, "Llama-3.2-3B-Instruct") << "give its configuration here";
  return ConfigOf(128256, 3072, 8192, 28, 24, 8);
}

DecoderConfig ConfigOf(const v1::JobSpec& job) {
  const std::string from = job.model().from();
  if (from.empty()) return DecoderConfigFromSpec(job.model(), /*data_vocab_size=*/32000).value();
  return ConfigOfFolder(std::filesystem::path(from).filename());
}

std::vector<std::string> JobFiles() {
  return PosixFileSystem().List(ESPALIER_SOURCE_DIR "/configs/jobs").value();
}

class JobOnAMac : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Files, JobOnAMac, testing::ValuesIn(JobFiles()), [](const auto& info) {
  return absl::StrReplaceAll(info.param.substr(0, info.param.rfind('.')), {{"-", "_"}, {".", "_"}});
});

// What the file trains, as it says, in the largest pass that it allows there.
TEST_P(JobOnAMac, BreaksNoRule) {
  const v1::JobSpec job = JobOf(GetParam());
  const DecoderConfig config = ConfigOf(job);
  const int64_t length = job.data().sequence_length();
  const auto& given = job.batch().micro_batch();
  const int64_t rows =
      std::min<int64_t>({given.empty() ? job.batch().max_micro_batch()
                                       : *std::max_element(given.begin(), given.end()),
                         job.train().global_batch(), MostSequences(config, length, torch::kMPS)});
  const double dropout = std::max(job.model().dropout(), job.train().lora().dropout());
  const auto recompute = RecomputedLayers(job.train(), config.layers);
  ASSERT_TRUE(recompute.ok()) << recompute.status();
  const MacDevice mac(MacDevice::Mode::kShapesOnly);
  const auto options = ParameterOptions(config, job.train(), MacDevice::device());
  ASSERT_TRUE(options.ok()) << options.status();
  const absl::Status done =
      CatchTorch("a pass", [&] { RunPass(config, *options, rows, length, dropout, *recompute); });
  EXPECT_TRUE(done.ok()) << done;
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
}

// Where the README, or the job's own comment, has it run.
struct Home {
  std::string job, profile;
  int64_t limit_bytes = 0;  // 0: the profile's
  int64_t sequences = 1;    // of a pass
};

std::vector<Home> Homes() {
  std::vector<Home> homes = {{"1b-one-machine.yaml", "macbook-m3-max", int64_t{28} << 30}};
  for (const char* profile : {"mac-studio-m2-ultra", "macbook-m3-max"}) {
    for (const char* job : {"quickstart.yaml", "17m.yaml", "17m-sft.yaml", "124m.yaml",
                            "1b-two-macs.yaml", "lora-llama-3.2-3b.yaml"}) {
      homes.push_back({job, profile});
    }
  }
  const v1::ClusterSpec named =
      LoadClusterFile(ESPALIER_SOURCE_DIR "/configs/clusters/studio-macbook.yaml").value();
  for (int i = 0; i < named.nodes_size(); ++i) {
    const char* job = "llama-1b-two-macs.yaml";
    homes.push_back({job, named.nodes(i).profile(), named.nodes(i).memory_limit_bytes(),
                     JobOf(job).batch().micro_batch(i)});
  }
  return homes;
}

// A job that does not is refused at its start, on the machine that its guide names.
TEST(JobOnAMacToo, FitsTheMemoryThatItsMachinesMayUse) {
  for (const Home& home : Homes()) {
    const v1::JobSpec job = JobOf(home.job);
    const DecoderConfig config = ConfigOf(job);
    const auto options = ParameterOptions(config, job.train(), torch::kMPS);
    ASSERT_TRUE(options.ok()) << options.status();
    const int64_t limit = home.limit_bytes > 0
                              ? home.limit_bytes
                              : LoadShippedProfile(home.profile)->memory_limit_bytes();
    const int64_t state = StateBytesOf({config, job, *options, /*ranks=*/2}).on_device;
    EXPECT_LE(state + home.sequences * PassBytes(config, job.data().sequence_length()), limit)
        << home.job << " on " << home.profile << ", whose state takes " << state;
  }
}

// Adapters on a model of 7 or 8 billion parameters, of which one layer is as all are: its gate and
// up are one product of 28,672 or 37,888 columns, and Qwen's down has 18,944 inputs.
TEST(ShapeOnAMacToo, AdaptersOnALargeModelBreakNoRule) {
  DecoderConfig llama;
  llama.vocab_size = 128256;
  llama.hidden_size = 4096;
  llama.intermediate_size = 14336;
  llama.layers = 1;
  llama.heads = 32;
  llama.kv_heads = 8;
  llama.head_dim = 128;
  DecoderConfig qwen = llama;
  qwen.vocab_size = 152064;
  qwen.hidden_size = 3584;
  qwen.intermediate_size = 18944;
  qwen.heads = 28;
  qwen.kv_heads = 4;
  qwen.attention_bias = true;
  const MacDevice mac(MacDevice::Mode::kShapesOnly);
  for (const DecoderConfig& config : {llama, qwen}) {
    for (const bool recompute : {false, true}) {
      const absl::Status done = CatchTorch("a pass", [&] {
        Parameters::Options options =
            Parameters::ForTraining(MacDevice::device(), torch::kBFloat16);
        options.lora = LoraConfig{};
        options.trained = [](const ParameterShape& shape) { return shape.is_adapter(); };
        RunPass(config, options, 1, 2048, recompute ? 0.05 : 0, {recompute});
      });
      EXPECT_TRUE(done.ok()) << done;
    }
  }
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
}

struct LayerPass {
  torch::ScalarType type = torch::kFloat;
  bool adapters = false;  // on all projections, which alone are trained
  bool recompute = false;
  bool packed = false;
};

// What a layer adds to the launches of a pass, forward and backward, by operator.
std::map<std::string, int64_t> LaunchesOfALayer(const LayerPass& pass,
                                                DecoderConfig config = ConfigOf("17m")) {
  Parameters::Options options = Parameters::ForTraining(MacDevice::device(), pass.type);
  if (pass.adapters) {
    options.lora = LoraConfig{};
    options.trained = [](const ParameterShape& shape) { return shape.is_adapter(); };
  }
  MacDevice mac(MacDevice::Mode::kShapesOnly);
  std::map<std::string, int64_t> launches;
  for (const int64_t sign : {-1, 1}) {
    config.layers = 2 + (sign > 0 ? 1 : 0);
    mac.Restart();
    RunPass(config, options, 8, 256, 0,
            std::vector<bool>(static_cast<size_t>(config.layers), pass.recompute), pass.packed);
    for (const auto& [name, count] : mac.tally().launches) launches[name] += sign * count;
  }
  return launches;
}

int64_t Sum(const std::map<std::string, int64_t>& launches) {
  int64_t all = 0;
  for (const auto& [name, count] : launches) all += count;
  return all;
}

TEST(LaunchesOnAMac, OfALayerAreNoMoreThanTheyWere) {
  for (const auto& [type, most] : {std::pair{torch::kFloat, 65}, {torch::kBFloat16, 86}}) {
    int64_t all = 0;
    nlohmann::json operators;
    for (const auto& [name, count] : LaunchesOfALayer({type})) {
      all += count;
      if (count > 0) operators[name] = count;
    }
    // A line of the benchmark `launches`.
    const nlohmann::json line = {
        {"bench", "launches"},        {"who", "espalier"},      {"precision", PrecisionName(type)},
        {"launches_of_a_layer", all}, {"operators", operators}, {"version", TorchVersion()}};
    std::printf("%s\n", line.dump().c_str());
    EXPECT_LE(all, most);
  }
}

// Where examples share rows, keys and queries are turned one by one, each in three, both ways.
TEST(LaunchesOnAMac, OfALayerOverPackedRowsAreSixMore) {
  EXPECT_LE(Sum(LaunchesOfALayer({.packed = true})), Sum(LaunchesOfALayer({})) + 6);
}

TEST(LaunchesOnAMac, OfALayerThatJobsTrainOtherwiseAreNoMoreThanTheyWere) {
  struct Case {
    const char* what;
    LayerPass pass;
    int64_t most;
  };
  for (const Case& c : {Case{"adapters", {.adapters = true}, 162},
                        Case{"adapters, bf16", {torch::kBFloat16, true}, 195},
                        Case{"adapters, bf16, computed again", {torch::kBFloat16, true, true}, 252},
                        Case{"computed again", {.recompute = true}, 88},
                        Case{"bf16, computed again", {torch::kBFloat16, false, true}, 116}}) {
    EXPECT_LE(Sum(LaunchesOfALayer(c.pass)), c.most) << c.what;
  }
  // Each layer runs once in every cycle of the supervised step.
  const DecoderConfig recursive = ConfigOf(JobOf("trm-nano.yaml"));
  EXPECT_LE(Sum(LaunchesOfALayer({}, recursive)), 315) << "of a recursive model";
}

TEST(RulesOnAMac, SeeAWriteAtPlacesOfAView) {
  const MacDevice mac;
  const Tensor place = torch::zeros({1}, torch::kLong).to(MacDevice::device());
  const Tensor row = torch::ones({1, 4}).to(MacDevice::device());
  const Tensor to = torch::zeros({4, 4}).to(MacDevice::device());
  Tensor(to).index_add_(0, place, row);
  EXPECT_THAT(mac.tally().violations, testing::IsEmpty());
  to.t().index_add_(0, place, row);
  EXPECT_THAT(mac.tally().violations, testing::ElementsAre(testing::HasSubstr("#176159")));
}

}  // namespace
}  // namespace espalier
