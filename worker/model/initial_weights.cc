// The initial weights: a function of the seed and the parameter's name.
#include <algorithm>
#include <cmath>

#include "common/base/random.h"
#include "worker/model/parameters.h"

namespace espalier {
namespace {

// Elements that share one random stream; fixed, since it decides the values.
constexpr int64_t kStreamElements = 4096;

// FNV-1a.
uint64_t HashName(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}

// Rounded to 2^-20, so that the last bits of a platform's log and cos do not reach the weights.
float Normal(double radius, double angle_component, double deviation) {
  return static_cast<float>(std::nearbyint(radius * angle_component * 0x1p20) * 0x1p-20 *
                            deviation);
}

// Box and Muller 1958, eq. 1; `n` values from stream `chunk` of `seed`.
void FillNormal(float* to, int64_t n, uint64_t seed, uint64_t chunk, double deviation) {
  constexpr double kTwoPi = 6.283185307179586;
  SplitMix64 random(seed, chunk);
  for (int64_t i = 0; i < n; i += 2) {
    const double radius = std::sqrt(-2 * std::log(1 - random.Uniform()));
    const double angle = kTwoPi * random.Uniform();
    to[i] = Normal(radius, std::cos(angle), deviation);
    if (i + 1 < n) to[i + 1] = Normal(radius, std::sin(angle), deviation);
  }
}

// The deviation of a normal distribution of deviation 1 without what lies beyond 2.
constexpr double kTruncatedDeviation = 0.8796256610342398;

// As FillNormal, without what lies beyond 2 before it is scaled; of the deviation that is asked
// for.
void FillTruncated(float* to, int64_t n, uint64_t seed, uint64_t chunk, double deviation) {
  constexpr double kTwoPi = 6.283185307179586, kMost = 2;
  SplitMix64 random(seed, chunk);
  for (int64_t i = 0; i < n;) {
    const double radius = std::sqrt(-2 * std::log(1 - random.Uniform()));
    const double along = std::cos(kTwoPi * random.Uniform());
    if (std::abs(radius * along) > kMost) continue;
    to[i++] = Normal(radius, along, deviation / kTruncatedDeviation);
  }
}

// Uniform in [-bound, bound).
void FillUniform(float* to, int64_t n, uint64_t seed, uint64_t chunk, double bound) {
  SplitMix64 random(seed, chunk);
  for (int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<float>((2 * random.Uniform() - 1) * bound);
  }
}

// `fill` sets the values of a chunk from a stream.
template <typename Fill>
torch::Tensor RandomTensor(const ParameterShape& shape, uint64_t seed, Fill&& fill) {
  torch::Tensor values = torch::empty(shape.shape, torch::kFloat);
  float* data = values.data_ptr<float>();
  const int64_t size = values.numel();
  const uint64_t stream = MixBits(seed) ^ HashName(shape.name);
  const int64_t chunks = (size + kStreamElements - 1) / kStreamElements;
  at::parallel_for(0, chunks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kStreamElements;
      fill(data + first, std::min(kStreamElements, size - first), stream,
           static_cast<uint64_t>(chunk));
    }
  });
  return values;
}

torch::Tensor NormalTensor(const ParameterShape& shape, uint64_t seed, double deviation) {
  return RandomTensor(shape, seed, [&](float* to, int64_t n, uint64_t stream, uint64_t chunk) {
    FillNormal(to, n, stream, chunk, deviation);
  });
}

torch::Tensor TruncatedTensor(const ParameterShape& shape, uint64_t seed, double deviation) {
  return RandomTensor(shape, seed, [&](float* to, int64_t n, uint64_t stream, uint64_t chunk) {
    FillTruncated(to, n, stream, chunk, deviation);
  });
}

// Kaiming-uniform(a) has a bound of sqrt(6 / ((1 + a^2) inputs)) (He et al. 2015, eq. 14).
torch::Tensor KaimingTensor(const ParameterShape& shape, uint64_t seed) {
  const double bound = 1 / std::sqrt(static_cast<double>(shape.shape[1]));
  return RandomTensor(shape, seed, [&](float* to, int64_t n, uint64_t stream, uint64_t chunk) {
    FillUniform(to, n, stream, chunk, bound);
  });
}

}  // namespace

void Parameters::InitializeAdapters(uint64_t seed) {
  torch::NoGradGuard no_grad;
  for (Parameter& parameter : all_) {
    const ParameterRole role = parameter.shape.role;
    if (role == ParameterRole::kAdapterA)
      parameter.value.copy_(KaimingTensor(parameter.shape, seed));
    if (role == ParameterRole::kAdapterB) parameter.value.zero_();
  }
  RefreshCopy();
}

void Parameters::Initialize(uint64_t seed, double initializer_range) {
  torch::NoGradGuard no_grad;
  for (Parameter& parameter : all_) {
    const ParameterShape& shape = parameter.shape;
    if (shape.is_adapter()) continue;
    if (shape.truncated) {
      parameter.value.copy_(TruncatedTensor(shape, seed, initializer_range * shape.spread));
    } else if (shape.shape.size() == 2) {
      parameter.value.copy_(NormalTensor(shape, seed, initializer_range * shape.spread));
    } else {
      parameter.value.fill_(shape.role == ParameterRole::kNorm ? 1 : shape.initial);
    }
  }
  InitializeAdapters(seed);
}

}  // namespace espalier
