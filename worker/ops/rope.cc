#include <algorithm>
#include <cmath>

#include "worker/ops/ops.h"

namespace espalier {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// Meta's Llama 3.1 rule, see v1::RopeScaling.
torch::Tensor Llama3(const torch::Tensor& frequency, const RopeScalingConfig& scaling) {
  const double original = static_cast<double>(scaling.original_max_position_embeddings);
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const torch::Tensor wavelength = kTwoPi / frequency;
  const torch::Tensor slow = frequency / scaling.factor;
  const torch::Tensor blend = (original / wavelength - low) / (high - low);
  const torch::Tensor smooth = (1 - blend) * slow + blend * frequency;
  torch::Tensor scaled = torch::where(wavelength > original / low, slow, frequency);
  const torch::Tensor between =
      (wavelength >= original / high).logical_and(wavelength <= original / low);
  return torch::where(between, smooth, scaled);
}

// Pair of dimensions that turns `rotations` times over the original positions (eq. 17 there).
double YarnDimension(const DecoderConfig& config, double rotations) {
  const auto positions = static_cast<double>(config.rope_scaling->original_max_position_embeddings);
  return static_cast<double>(config.head_dim) * std::log(positions / (rotations * kTwoPi)) /
         (2 * std::log(config.rope_theta));
}

// Peng et al. 2023, section 3.2, with the bounds as transformers rounds them.
torch::Tensor Yarn(const torch::Tensor& frequency, const DecoderConfig& config) {
  const RopeScalingConfig& scaling = *config.rope_scaling;
  double low = YarnDimension(config, scaling.beta_fast);
  double high = YarnDimension(config, scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(config.head_dim - 1));
  if (low == high) high += 0.001;
  const torch::Tensor pair = torch::arange(config.head_dim / 2, torch::kLong).to(torch::kFloat);
  const torch::Tensor keep = 1 - ((pair - low) / (high - low)).clamp(0, 1);
  return frequency / scaling.factor * (1 - keep) + frequency * keep;
}

// Peng et al. 2023, section 3.4: what cosines and sines are multiplied with.
double YarnAttentionFactor(const RopeScalingConfig& scaling) {
  if (scaling.attention_factor) return *scaling.attention_factor;
  const auto scale = [&](double mscale) {
    return scaling.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(scaling.factor) + 1;
  };
  if (scaling.mscale != 0 && scaling.mscale_all_dim != 0) {
    return scale(scaling.mscale) / scale(scaling.mscale_all_dim);
  }
  return scale(1);
}

// Base of the frequencies for a sequence of so many positions.
double Base(const DecoderConfig& config, int64_t positions) {
  if (!RopeDependsOnLength(config, positions)) return config.rope_theta;
  const double factor = config.rope_scaling->factor;
  const double ratio =
      static_cast<double>(positions) / static_cast<double>(config.max_position_embeddings);
  const auto dim = static_cast<double>(config.head_dim);
  return config.rope_theta * std::pow(factor * ratio - (factor - 1), dim / (dim - 2));
}

}  // namespace

bool RopeDependsOnLength(const DecoderConfig& config, int64_t positions) {
  return config.rope_scaling && config.rope_scaling->kind == RopeScalingConfig::Kind::kDynamic &&
         positions > config.max_position_embeddings;
}

// In fp32 throughout, as transformers computes them: at far positions the rounding of the angle is
// part of the model.
RopeFrequencies MakeRopeFrequencies(const DecoderConfig& config, int64_t positions) {
  const torch::Tensor exponent =
      torch::arange(0, config.head_dim, 2, torch::kLong).to(torch::kFloat) / config.head_dim;
  torch::Tensor frequency = 1.0 / torch::pow(Base(config, positions), exponent);
  double scale = 1;
  if (config.rope_scaling) {
    switch (config.rope_scaling->kind) {
      case RopeScalingConfig::Kind::kLlama3:
        frequency = Llama3(frequency, *config.rope_scaling);
        break;
      case RopeScalingConfig::Kind::kLinear:
        frequency = frequency / config.rope_scaling->factor;
        break;
      case RopeScalingConfig::Kind::kDynamic:
        break;
      case RopeScalingConfig::Kind::kYarn:
        frequency = Yarn(frequency, config);
        scale = YarnAttentionFactor(*config.rope_scaling);
        break;
    }
  }
  return {frequency, scale};
}

RopeTable MakeRopeTable(const DecoderConfig& config, int64_t positions, torch::Device device) {
  const auto [frequency, scale] = MakeRopeFrequencies(config, positions);
  const torch::Tensor position = torch::arange(positions, torch::kLong).to(torch::kFloat);
  const torch::Tensor angle = torch::outer(position, frequency);
  const torch::Tensor cosine = angle.cos() * scale, sine = angle.sin() * scale;
  return {cosine.to(device), sine.to(device), torch::cat({cosine, cosine}, 1).to(device),
          torch::cat({-sine, sine}, 1).to(device)};
}

}  // namespace espalier
