#include "worker/kernels/adamw_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/base/simd.h"
#include "worker/kernels/adam_atan2_math.h"

namespace espalier::cpu {

ESPALIER_SIMD_CLONES void AdamWUpdate(const AdamWBlock& block, const AdamWStep& step) {
  float* __restrict value = block.value;
  float* __restrict gradient = block.gradient;
  float* __restrict first = block.first;
  float* __restrict second = block.second;
  const AdamWStep f = step;
  const int64_t size = block.size;
  if (f.first_factor > 0) {
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) {
      float m = first[i], v = second[i], p = value[i];
      AdamAtan2Element(f, gradient[i], m, v, p);
      first[i] = m;
      second[i] = v;
      value[i] = p;
      gradient[i] = 0;
    }
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    float m = first[i], v = second[i], p = value[i];
    AdamWElement(f, gradient[i], m, v, p);
    first[i] = m;
    second[i] = v;
    value[i] = p;
    gradient[i] = 0;
  }
}

ESPALIER_SIMD_CLONES void AverageUpdate(const float* __restrict value, float* __restrict average,
                                        int64_t size, float share) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) average[i] += (value[i] - average[i]) * share;
}

namespace {

// Numbers are in the order of their bits; of what is none, the result is none.
inline float LargestMagnitude(const float* __restrict x, int64_t n) {
  int32_t most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; ++i) {
    most = std::max(most, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(most);
}

// One block of moment8::kBlock elements or fewer; without `random` to the nearest.
inline void EncodeBlock(const float* __restrict m, const float* __restrict v, int64_t n,
                        const Moments8& to, const RandomPlace* random) {
  *to.first_unit = moment8::FirstUnit(LargestMagnitude(m, n));
  *to.second_unit = moment8::SecondUnit(LargestMagnitude(v, n));
  const float first_inverse = 1 / *to.first_unit, second_inverse = 1 / *to.second_unit;
  int8_t* __restrict first = to.first;
  uint8_t* __restrict second = to.second;
  const RandomPlace place = random == nullptr ? RandomPlace{} : *random;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits =
        moment8::RandomBits(place.key, place.first_element + static_cast<uint32_t>(i));
    const float low = random == nullptr ? moment8::kNearest : moment8::LowRandom(bits);
    const float high = random == nullptr ? moment8::kNearest : moment8::HighRandom(bits);
    first[i] = moment8::EncodeFirst(m[i], first_inverse, low);
    second[i] = moment8::EncodeSecond(v[i], second_inverse, high);
  }
}

inline Moments8 From(const Moments8& moments, int64_t element) {
  const int64_t block = element / moment8::kBlock;
  return {moments.first + element, moments.second + element, moments.first_unit + block,
          moments.second_unit + block};
}

}  // namespace

ESPALIER_SIMD_CLONES void AdamW8Update(const AdamW8Block& block, const AdamWStep& step) {
  for (int64_t begin = 0; begin < block.size; begin += moment8::kBlock) {
    const int64_t n = std::min(moment8::kBlock, block.size - begin);
    float* value = block.value + begin;
    float* gradient = block.gradient + begin;
    const Moments8 moments = From(block.moments, begin);
    const int8_t* __restrict first = moments.first;
    const uint8_t* __restrict second = moments.second;
    const float first_unit = *moments.first_unit, second_unit = *moments.second_unit;
    float m[moment8::kBlock], v[moment8::kBlock];
    for (int64_t i = 0; i < n; ++i) m[i] = moment8::DecodeFirst(first[i], first_unit);
    for (int64_t i = 0; i < n; ++i) v[i] = moment8::DecodeSecond(second[i], second_unit);
    AdamWUpdate({value, gradient, m, v, n}, step);
    const RandomPlace random{block.random.key,
                             block.random.first_element + static_cast<uint32_t>(begin)};
    EncodeBlock(m, v, n, moments, &random);
  }
}

void DecodeMoments(const Moments8& from, int64_t size, float* first, float* second) {
  for (int64_t i = 0; i < size; ++i) {
    const Moments8 moment = From(from, i);
    first[i] = moment8::DecodeFirst(*moment.first, *moment.first_unit);
    second[i] = moment8::DecodeSecond(*moment.second, *moment.second_unit);
  }
}

void EncodeMoments(const float* first, const float* second, int64_t size, const Moments8& to) {
  for (int64_t begin = 0; begin < size; begin += moment8::kBlock) {
    EncodeBlock(first + begin, second + begin, std::min(moment8::kBlock, size - begin),
                From(to, begin), nullptr);
  }
}

// The square of a float is exact in a double, so only the order of the additions matters: lane j
// takes elements j, j + kLanes and so on.
ESPALIER_SIMD_CLONES double SumOfSquares(const float* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int64_t j = 0; j < kLanes; ++j) {
      const double v = x[i + j];
      lanes[j] += v * v;
    }
  }
  for (int64_t j = 0; i + j < n; ++j) {
    const double v = x[i + j];
    lanes[j] += v * v;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace espalier::cpu
