#include "worker/model/ops.h"

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

}  // namespace

// In fp32 throughout, as transformers computes them: at far positions the rounding of the angle is
// part of the model.
RopeTable MakeRopeTable(const DecoderConfig& config, int64_t positions, torch::Device device) {
  const torch::Tensor exponent =
      torch::arange(0, config.head_dim, 2, torch::kLong).to(torch::kFloat) / config.head_dim;
  torch::Tensor frequency = 1.0 / torch::pow(config.rope_theta, exponent);
  if (config.rope_scaling) {
    switch (config.rope_scaling->kind) {
      case RopeScalingConfig::Kind::kLlama3:
        frequency = Llama3(frequency, *config.rope_scaling);
        break;
      case RopeScalingConfig::Kind::kLinear:
        frequency = frequency / config.rope_scaling->factor;
        break;
    }
  }
  const torch::Tensor position = torch::arange(positions, torch::kLong).to(torch::kFloat);
  const torch::Tensor angle = torch::outer(position, frequency);
  return {angle.cos().to(device), angle.sin().to(device)};
}

}  // namespace espalier
