// Rotary tables: frequencies against values worked out by hand from the papers' formulas.
#include <gtest/gtest.h>

#include <cmath>

#include "worker/ops/ops.h"

namespace espalier {
namespace {

DecoderConfig Rope(RopeScalingConfig::Kind kind, double factor) {
  DecoderConfig config;
  config.head_dim = 8;
  config.rope_theta = 10000;
  config.max_position_embeddings = 64;
  config.rope_scaling = RopeScalingConfig{.kind = kind, .factor = factor};
  config.rope_scaling->original_max_position_embeddings = 64;
  return config;
}

// The angle of position 1 is the frequency itself.
std::vector<double> Frequencies(const DecoderConfig& config, int64_t positions) {
  const RopeTable table = MakeRopeTable(config, positions, torch::kCPU);
  std::vector<double> frequencies;
  for (int64_t pair = 0; pair < config.head_dim / 2; ++pair) {
    frequencies.push_back(
        std::atan2(table.sine[1][pair].item<double>(), table.cosine[1][pair].item<double>()));
  }
  return frequencies;
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * want[i]) << i;
}

TEST(RopeTable, PlainFrequenciesFallGeometrically) {
  DecoderConfig config = Rope(RopeScalingConfig::Kind::kLinear, 1);
  config.rope_scaling.reset();
  ExpectNear(Frequencies(config, 4), {1, 0.1, 0.01, 0.001});
}

TEST(RopeTable, LinearDividesAll) {
  ExpectNear(Frequencies(Rope(RopeScalingConfig::Kind::kLinear, 4), 4),
             {0.25, 0.025, 0.0025, 0.00025});
}

// Wavelengths 6.28, 62.8, 628 and 6283 against 64 / 4 = 16 and 64 / 1 = 64: the first stays, the
// second is blended with weight (64 / 62.83 - 1) / 3, the others are divided.
TEST(RopeTable, Llama3BlendsBetweenTheBounds) {
  const double blend = (64 * 0.1 / 6.283185307179586 - 1) / 3;
  ExpectNear(Frequencies(Rope(RopeScalingConfig::Kind::kLlama3, 8), 4),
             {1, (1 - blend) * 0.0125 + blend * 0.1, 0.00125, 0.000125});
}

TEST(RopeTable, DynamicChangesTheBaseBeyondTheTrainedLength) {
  const DecoderConfig config = Rope(RopeScalingConfig::Kind::kDynamic, 2);
  ExpectNear(Frequencies(config, 64), {1, 0.1, 0.01, 0.001});
  EXPECT_FALSE(RopeDependsOnLength(config, 64));
  EXPECT_TRUE(RopeDependsOnLength(config, 65));
  // base * (2 * 128 / 64 - 1)^(8 / 6)
  const double base = 10000 * std::pow(3, 8.0 / 6);
  ExpectNear(Frequencies(config, 128),
             {1, std::pow(base, -0.25), std::pow(base, -0.5), std::pow(base, -0.75)});
}

// d(r) = 8 ln(64 / (2 pi r)) / (2 ln 10000): -0.497 for 32 rotations, 1.008 for one; rounded to
// 0 (after the bound) and 2, so that pairs 0, 1, 2, 3 keep 1, 1/2, 0, 0 of their frequency.
TEST(RopeTable, YarnKeepsShortWavelengthsAndScalesCosines) {
  DecoderConfig config = Rope(RopeScalingConfig::Kind::kYarn, 4);
  ExpectNear(Frequencies(config, 4), {1, 0.5 * 0.1 + 0.5 * 0.025, 0.0025, 0.00025});
  const double scale = 0.1 * std::log(4) + 1;
  EXPECT_NEAR(MakeRopeTable(config, 4, torch::kCPU).cosine[0][0].item<double>(), scale, 1e-6);
  config.rope_scaling->attention_factor = 1;
  EXPECT_NEAR(MakeRopeTable(config, 4, torch::kCPU).cosine[0][0].item<double>(), 1, 1e-6);
}

}  // namespace
}  // namespace espalier
