#include "worker/memory/memory_meter.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "tests/worker/support/tiny_model.h"
#include "worker/memory/memory_advice.h"

namespace espalier {
namespace {

constexpr int64_t kGiga = 1'000'000'000;

TEST(TightestLimit, IsWhatTheMachineHasFreeUnlessSomebodyAllowsLess) {
  MachineMemory machine{
      .physical_bytes = 64 * kGiga, .limit_bytes = 64 * kGiga, .available_bytes = 60 * kGiga};
  EXPECT_EQ(TightestLimit(machine, 2 * kGiga, 0, 1).bytes, 62 * kGiga);
  EXPECT_EQ(TightestLimit(machine, 2 * kGiga, 0, 2).bytes, 32 * kGiga);
  EXPECT_EQ(TightestLimit(machine, 2 * kGiga, 0, 2).source, "the machine's memory");
  EXPECT_EQ(TightestLimit(machine, 2 * kGiga, 5 * kGiga, 2).bytes, 5 * kGiga);
  machine.limit_bytes = 16 * kGiga;
  EXPECT_EQ(TightestLimit(machine, 2 * kGiga, 0, 1).bytes, 16 * kGiga);
  EXPECT_EQ(TightestLimit(machine, 2 * kGiga, 0, 1).source, "the control group's limit");
  machine.available_bytes = 1 * kGiga;
  EXPECT_EQ(TightestLimit(machine, 2 * kGiga, 0, 1).bytes, 3 * kGiga);
}

TEST(MemoryMeter, WorkersThatShareACudaDeviceMeasureNothing) {
  EXPECT_TRUE(CheckOneWorkerEach(2, 2).ok());
  const absl::Status shared = CheckOneWorkerEach(2, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(shared));
  EXPECT_NE(shared.message().find("batch.micro_batch"), absl::string_view::npos) << shared;
}

TEST(MemoryMeter, ReadsThePeakSinceItsRestart) {
  MemoryMeter meter(torch::kCPU, RealClock());
  meter.Restart();
  const auto before = meter.Read();
  ASSERT_TRUE(before.ok()) << before.status();
  { const torch::Tensor block = torch::ones({int64_t{32} << 20}); }
  EXPECT_GT(meter.Read()->peak, before->now + (int64_t{120} << 20));
  meter.Trim();
  meter.Restart();
  EXPECT_LT(meter.Read()->peak, before->now + (int64_t{64} << 20));
}

// The process would end on MPS, where a tensor may not have 4 GiB.
TEST(MostSequences, KeepTheWidestTensorOfAPassBelow4GiBOnMps) {
  DecoderConfig config = TinyModelConfig();
  config.intermediate_size = 14336;
  EXPECT_EQ(MostSequences(config, 2048, torch::kMPS), 36);  // 37: 4.3e9 bytes
  EXPECT_EQ(MostSequences(config, 100000, torch::kMPS), 0);
  EXPECT_GT(MostSequences(config, 100000, torch::kCPU), 1 << 20);
}

TEST(MemoryAdvice, NamesTheNumbersAndWhatEachChangeSaves) {
  DecoderConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 2048;
  config.intermediate_size = 5632;
  config.layers = 22;
  config.heads = 32;
  config.kv_heads = 4;
  config.head_dim = 64;
  v1::JobSpec spec;
  spec.mutable_data()->set_sequence_length(2048);
  const auto state = [&](v1::MomentType type,
                         EmbeddingGradient untied = EmbeddingGradient::kDense) {
    spec.mutable_train()->mutable_optimizer()->set_moments(type);
    const Parameters::Options parameters = Trained(untied);
    return static_cast<double>(StateBytesOf({config, spec, parameters}).on_device);
  };
  const auto apart = EmbeddingGradient::kRowsApart;
  EXPECT_EQ(state(v1::MOMENT_TYPE_FP32, apart), state(v1::MOMENT_TYPE_FP32)) << "the head's";
  EXPECT_NEAR(state(v1::MOMENT_TYPE_FP32), 16.55e9, 0.01e9);
  EXPECT_NEAR(state(v1::MOMENT_TYPE_INT8), 16.55e9 * (10 + 8.0 / 256) / 16, 0.01e9);
  config.tie_word_embeddings = false;
  EXPECT_EQ(state(v1::MOMENT_TYPE_FP32) - state(v1::MOMENT_TYPE_FP32, apart), 4.0 * 32000 * 2048);
  config.tie_word_embeddings = true;
  spec.mutable_train()->mutable_optimizer()->set_moments(v1::MOMENT_TYPE_FP32);
  const std::string advice =
      MemoryAdvice({config, spec, Trained(EmbeddingGradient::kDense)}, 16 * kGiga);
  for (const char* part : {"16.6 GB", "the limit is 16 GB", "data.sequence_length 1024 (about ",
                           "train.optimizer.moments: int8 (about 6.17 GB less)",
                           "train.recompute: all (about ", "a smaller model"}) {
    EXPECT_NE(advice.find(part), std::string::npos) << part << " in: " << advice;
  }
}

// What the exchange needs besides the model, where it lies, and when: gradients on a device have
// sums on the host, which is the same memory on MPS; what is owed of int8 gradients is on the host.
TEST(StateBytes, CountWhatTheExchangeNeedsWhereItLies) {
  DecoderConfig config = TinyModelConfig();
  config.tie_word_embeddings = false;
  const auto of = [&](const char* device, int ranks, v1::GradientDtype dtype) {
    v1::JobSpec spec;
    spec.mutable_parallel()->set_gradient_dtype(dtype);
    const auto parameters = Parameters::ForTraining(torch::Device(device));
    return StateBytesOf({config, spec, parameters, ranks});
  };
  const auto fp32 = v1::GRADIENT_DTYPE_FP32, int8 = v1::GRADIENT_DTYPE_INT8;
  const int64_t table = 4 * config.vocab_size * config.hidden_size;
  const int64_t cpu = of("cpu", 1, fp32).on_device, cuda = of("cuda", 1, fp32).on_device;
  const int64_t apart = (cpu - 3 * table) / 4, dense = apart + table;  // of gradients
  EXPECT_EQ(cuda, cpu + table) << "where passes are recorded the table's gradient is whole";
  // Sums on the host, and a copy of all values on the device.
  const int64_t mps = cpu + apart + dense;
  struct Case {
    const char* device;
    int ranks;
    v1::GradientDtype dtype;
    int64_t on_device, on_host;
  };
  for (const Case& c : std::vector<Case>{{"cpu", 2, fp32, cpu, 0},
                                         {"cpu", 2, int8, cpu + apart, 0},
                                         {"mps", 1, fp32, mps, 0},
                                         {"mps", 2, fp32, mps, 0},
                                         {"mps", 2, int8, mps + apart, 0},
                                         {"cuda", 1, fp32, cuda, 0},
                                         {"cuda", 2, fp32, cuda, dense},
                                         {"cuda", 1, int8, cuda, dense + apart}}) {
    const StateBytes bytes = of(c.device, c.ranks, c.dtype);
    EXPECT_EQ(bytes.on_device, c.on_device) << c.device << " " << c.ranks << " " << c.dtype;
    EXPECT_EQ(bytes.on_host, c.on_host) << c.device << " " << c.ranks << " " << c.dtype;
  }
}

constexpr int64_t kGb = int64_t{1} << 30;

TEST(MpsWatermarks, AreWhatTheDeviceRecommendsAtMost) {
  const MpsWatermarks all = MpsWatermarksFor(37 * kGb, {.physical_bytes = 48 * kGb});
  EXPECT_DOUBLE_EQ(all.high, 1);
  EXPECT_LT(all.low, all.high);
  const MpsShare generous{.physical_bytes = 48 * kGb, .wanted_bytes = 200 * kGb};
  EXPECT_DOUBLE_EQ(MpsWatermarksFor(37 * kGb, generous).high, 1);
}

TEST(MpsWatermarks, FollowTheLimitOfTheNode) {
  const MpsShare large{.physical_bytes = 192 * kGb, .wanted_bytes = 32 * kGb};
  EXPECT_DOUBLE_EQ(MpsWatermarksFor(128 * kGb, large).high, 0.25);
  const MpsShare small{.physical_bytes = 64 * kGb, .wanted_bytes = 24 * kGb};
  EXPECT_DOUBLE_EQ(MpsWatermarksFor(0, small).high, 0.5) << "of three quarters";
}

TEST(MpsWatermarks, AreSharedByTheWorkersOfAMachine) {
  const MpsShare shared{.physical_bytes = 192 * kGb, .sharers = 2};
  EXPECT_DOUBLE_EQ(MpsWatermarksFor(128 * kGb, shared).high, 0.5);
}

// Values, moments and sums lie beside what LibTorch allocates, and in the same memory.
TEST(MpsWatermarks, LeaveWhatIsKeptOnTheHostToIt) {
  const MpsShare limited{
      .physical_bytes = 128 * kGb, .wanted_bytes = 96 * kGb, .beside_bytes = 16 * kGb};
  EXPECT_DOUBLE_EQ(MpsWatermarksFor(160 * kGb, limited).high, 0.5);
  const MpsShare whole{.physical_bytes = 64 * kGb, .beside_bytes = 36 * kGb};
  EXPECT_DOUBLE_EQ(MpsWatermarksFor(48 * kGb, whole).high, 0.5) << "of 60, a sixteenth less";
  const MpsShare none{.physical_bytes = 64 * kGb, .beside_bytes = 80 * kGb};
  EXPECT_GT(MpsWatermarksFor(48 * kGb, none).high, 0) << "which would mean no limit";
}

// All of the machine's memory is too much: macOS would swap to have its own.
TEST(MpsWatermarks, LeaveTheSystemItsPartWhereNobodyLimitsThem) {
  const int64_t machine = 64 * kGb, recommended = 48 * kGb;
  for (const int64_t wanted : {int64_t{0}, 200 * kGb}) {
    for (const int sharers : {1, 2}) {
      const MpsShare share{.physical_bytes = machine,
                           .wanted_bytes = wanted,
                           .beside_bytes = 17 * kGb,
                           .sharers = sharers};
      const double most = MpsWatermarksFor(recommended, share).high * recommended;
      EXPECT_LE(sharers * (most + 17 * kGb), machine * 15 / 16) << wanted << " " << sharers;
    }
  }
}

TEST(MpsWatermarks, AreOfMpsAlone) {
  const char* high = "PYTORCH_MPS_HIGH_WATERMARK_RATIO";
  const MpsShare share{.physical_bytes = 64 * kGb};
  EXPECT_TRUE(LimitGpuMemory(torch::kCPU, share).ok());
  EXPECT_EQ(std::getenv(high), nullptr);
  LimitGpuMemory(torch::kMPS, share).IgnoreError();  // fails where LibTorch has no MPS to ask
  EXPECT_STREQ(std::getenv(high), "1");
  unsetenv(high);
  unsetenv("PYTORCH_MPS_LOW_WATERMARK_RATIO");
}

// LibTorch throws at its first allocation where low is above high, and knows 1.4 and 1.7 by itself.
TEST(MpsWatermarks, OfWhichAPersonGaveOneHalfGetTheOther) {
  const char* high = "PYTORCH_MPS_HIGH_WATERMARK_RATIO";
  const char* low = "PYTORCH_MPS_LOW_WATERMARK_RATIO";
  for (const auto& [given, value] :
       {std::pair{high, "0.7"}, {high, "2.0"}, {low, "0.2"}, {low, "1.2"}}) {
    unsetenv(high);
    unsetenv(low);
    setenv(given, value, 1);
    EXPECT_FALSE(SetMpsWatermarks({.high = 0.5, .low = 0.4}));
    EXPECT_STREQ(std::getenv(given), value);
    ASSERT_NE(std::getenv(high), nullptr);
    ASSERT_NE(std::getenv(low), nullptr);
    EXPECT_LE(std::atof(std::getenv(low)), std::atof(std::getenv(high))) << given << value;
  }
  unsetenv(high);
  unsetenv(low);
}

// Which would read the environment too early: it does so once, when it is made.
TEST(MpsWatermarks, AreSetBeforeLibTorchsAllocatorIsAsked) {
  const char* high = "PYTORCH_MPS_HIGH_WATERMARK_RATIO";
  std::string at_first;
  double limit = 0;
  const MpsShare share{.physical_bytes = 64 * kGb, .wanted_bytes = 24 * kGb};
  LimitMpsMemory(share, {.recommended =
                             [&] {
                               at_first = std::getenv(high) == nullptr ? "" : std::getenv(high);
                               return 40 * kGb;
                             },
                         .limit = [&](double part) { limit = part; }});
  unsetenv(high);
  unsetenv("PYTORCH_MPS_LOW_WATERMARK_RATIO");
  EXPECT_EQ(at_first, "0.5") << "of three quarters of the machine";
  EXPECT_DOUBLE_EQ(limit, 0.6) << "of what it recommends";
}

TEST(MpsWatermarks, OfAPersonStay) {
  const char* high = "PYTORCH_MPS_HIGH_WATERMARK_RATIO";
  const char* low = "PYTORCH_MPS_LOW_WATERMARK_RATIO";
  unsetenv(low);
  setenv(high, "0.0", 1);
  SetMpsWatermarks({.high = 0.5, .low = 0.4});
  EXPECT_STREQ(std::getenv(high), "0.0");
  EXPECT_EQ(std::getenv(low), nullptr);
  unsetenv(high);
  SetMpsWatermarks({.high = 0.5, .low = 0.4});
  EXPECT_STREQ(std::getenv(high), "0.5");
  EXPECT_STREQ(std::getenv(low), "0.4");
  unsetenv(high);
  unsetenv(low);
}

}  // namespace
}  // namespace espalier
