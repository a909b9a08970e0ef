#include "worker/memory/memory_meter.h"

#include <gtest/gtest.h>

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
    return static_cast<double>(StateBytes(config, type, Trained(untied)));
  };
  const auto apart = EmbeddingGradient::kRowsApart;
  EXPECT_EQ(state(v1::MOMENT_TYPE_FP32, apart), state(v1::MOMENT_TYPE_FP32)) << "the head's";
  EXPECT_NEAR(state(v1::MOMENT_TYPE_FP32), 16.55e9, 0.01e9);
  EXPECT_NEAR(state(v1::MOMENT_TYPE_INT8), 16.55e9 * (10 + 8.0 / 256) / 16, 0.01e9);
  config.tie_word_embeddings = false;
  EXPECT_EQ(state(v1::MOMENT_TYPE_FP32) - state(v1::MOMENT_TYPE_FP32, apart), 4.0 * 32000 * 2048);
  config.tie_word_embeddings = true;
  const std::string advice =
      MemoryAdvice(config, spec, Trained(EmbeddingGradient::kDense), 16 * kGiga);
  for (const char* part : {"16.6 GB", "the limit is 16 GB", "data.sequence_length 1024 (about ",
                           "train.optimizer.moments: int8 (about 6.17 GB less)",
                           "train.recompute: all (about ", "a smaller model"}) {
    EXPECT_NE(advice.find(part), std::string::npos) << part << " in: " << advice;
  }
}

}  // namespace
}  // namespace espalier
