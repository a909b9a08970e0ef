// What loading a model or a checkpoint takes besides the model itself: next to nothing.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/config/job_file.h"
#include "common/platform/platform.h"
#include "tests/worker/support/test_folder.h"
#include "worker/formats/safetensors.h"
#include "worker/memory/allocator.h"
#include "worker/model/pretrained.h"
#include "worker/state/checkpoint.h"
#include "worker/state/replica_checkpoint.h"

namespace espalier {
namespace {

// 22 M parameters, a third of them in one tensor: 88 MB in fp32.
DecoderConfig LargeConfig() {
  DecoderConfig config;
  config.vocab_size = 16384;
  config.hidden_size = 512;
  config.intermediate_size = 1024;
  config.layers = 5;
  config.heads = 8;
  config.kv_heads = 8;
  config.head_dim = 64;
  config.tie_word_embeddings = true;
  return config;
}

int64_t ElementsOf(const DecoderConfig& config) {
  int64_t elements = 0;
  for (const ParameterShape& parameter : ParameterShapes(config)) {
    int64_t size = 1;
    for (const int64_t dimension : parameter.shape) size *= dimension;
    elements += size;
  }
  return elements;
}

// A folder with config.json and model.safetensors of zeros.
void WriteModel(const TestFolder& folder, const DecoderConfig& config, TensorType type) {
  folder.Write("config.json", DecoderConfigToJson(config));
  std::ofstream out(folder / "model.safetensors", std::ios::binary);
  std::vector<TensorSpec> specs;
  for (const ParameterShape& parameter : ParameterShapes(config)) {
    specs.push_back({parameter.name, type, parameter.shape});
  }
  auto writer = SafetensorsWriter::Create(specs, {}, [&](absl::Span<const std::byte> bytes) {
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    return absl::OkStatus();
  });
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const TensorSpec& spec : specs) {
    const std::vector<std::byte> zeros(static_cast<size_t>(*TensorBytes(spec)));
    ASSERT_TRUE(writer->Append(zeros).ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
}

// Highest memory of the process while `body` runs, less what it had before. It runs once before
// that: the first time brings in pages of LibTorch's code, 9 MB of 2.6.
template <typename Body>
int64_t PeakOf(const Body& body) {
  body();
  ReleaseFreeMemory();
  RestartRecentPeak();
  const int64_t before = ReadProcessMemory()->now_bytes;
  body();
  return ReadProcessMemory()->recent_peak_bytes - before;
}

class LoadingMemory : public testing::TestWithParam<TensorType> {};
INSTANTIATE_TEST_SUITE_P(Types, LoadingMemory,
                         testing::Values(TensorType::kF32, TensorType::kBF16, TensorType::kF16),
                         [](const auto& info) { return std::string(TensorTypeName(info.param)); });

TEST_P(LoadingMemory, AModelPeaksBelowSixFifthsOfItself) {
  const TestFolder folder;
  const DecoderConfig config = LargeConfig();
  WriteModel(folder, config, GetParam());
  const int64_t model = ElementsOf(config) * 4;
  const int64_t peak = PeakOf([&] {
    const auto loaded = LoadPretrained(folder.path(), {});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
  });
  EXPECT_GT(peak, model * 9 / 10) << "it is not in memory";
  EXPECT_LT(peak, model * 6 / 5);
}

// As a base that is frozen is.
TEST_P(LoadingMemory, AModelThatIsKeptInItsStoredTypePeaksBelowSixFifthsOfThat) {
  const TestFolder folder;
  const DecoderConfig config = LargeConfig();
  WriteModel(folder, config, GetParam());
  Parameters::Options options;
  if (GetParam() == TensorType::kBF16) options.compute_type = torch::kBFloat16;
  if (GetParam() == TensorType::kF16) options.compute_type = torch::kHalf;
  const int64_t model = ElementsOf(config) * TensorTypeBytes(GetParam());
  const int64_t peak = PeakOf([&] {
    const auto loaded = LoadPretrained(folder.path(), options);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
  });
  EXPECT_GT(peak, model * 9 / 10) << "it is not in memory";
  EXPECT_LT(peak, model * 6 / 5);
}

TEST(LoadingMemoryOfCheckpoints, ACheckpointPeaksBelowSixFifthsOfTheStateItFills) {
  const TestFolder folder;
  RunIdentity identity;
  FillJobDefaults(identity.spec);
  identity.tokenizer_json = "{}";
  {
    const auto replica = Replica::Create(LargeConfig(), identity.spec.train(), torch::kCPU);
    ASSERT_TRUE(replica.ok()) << replica.status();
    (*replica)->parameters().Initialize(1, 0.02);
    const CheckpointContent content = ContentOf(**replica, identity, std::nullopt);
    ASSERT_TRUE(WriteCheckpointFiles(PosixFileSystem(), folder / "step", content).ok());
  }
  const int64_t state = ElementsOf(LargeConfig()) * 4 * 4;  // with gradients and two moments
  const int64_t peak = PeakOf([&] {
    const auto replica = Replica::Create(LargeConfig(), identity.spec.train(), torch::kCPU);
    ASSERT_TRUE(replica.ok()) << replica.status();
    const auto checkpoint = Checkpoint::Open(PosixFileSystem(), folder / "step");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const absl::Status loaded = LoadReplica(*checkpoint, identity, **replica);
    ASSERT_TRUE(loaded.ok()) << loaded;
  });
  EXPECT_GT(peak, state * 9 / 10) << "it is not in memory";
  EXPECT_LT(peak, state * 6 / 5);
}

}  // namespace
}  // namespace espalier
