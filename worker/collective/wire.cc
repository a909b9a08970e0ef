// Compiled without contraction of products and sums: a residual must be what the receivers of the
// encoded form lack, to the bit.
#include "worker/collective/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/bfloat16.h"
#include "common/base/simd.h"

namespace espalier {
namespace {

constexpr int64_t kScaleBytes = 2;
// Blocks without a larger value are sent as zeros; their reciprocal could overflow.
constexpr float kSmallest = 1e-30F;
constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kInfinity = 0x7f800000;
constexpr uint16_t kBf16Nan = 0x7fc0;

// Bits of the largest magnitude; kInfinity and above: not all are finite.
ESPALIER_SIMD_CLONES
uint32_t LargestBits(const float* values, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values[i]) & kMagnitude;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

ESPALIER_SIMD_CLONES
void EncodeBf16(const float* values, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = ToBfloat16(values[i]);
}
ESPALIER_SIMD_CLONES
void DecodeBf16(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = FromBfloat16(in[i]);
}

ESPALIER_SIMD_CLONES
void Quantise(const float* values, float inverse, int8_t* out, int64_t n) {
  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
  constexpr float kRound = 12582912.0F;
  for (int64_t i = 0; i < n; ++i) {
    const float rounded = (values[i] * inverse + kRound) - kRound;
    out[i] = static_cast<int8_t>(static_cast<int32_t>(rounded));
  }
}
ESPALIER_SIMD_CLONES
void Dequantise(const int8_t* in, float scale, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(in[i]) * scale;
}

ESPALIER_SIMD_CLONES
void AddTo(const float* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += in[i];
}
ESPALIER_SIMD_CLONES
void Subtract(const float* a, const float* b, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] - b[i];
}

// Of integers: unsigned, so that what goes beyond their range is defined.
ESPALIER_SIMD_CLONES
void AddIntegers(const uint64_t* in, uint64_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += in[i];
}

// The scale is rounded up, so that no value needs more than 127 of it.
uint16_t ScaleOf(uint32_t largest_bits) {
  if (largest_bits >= kInfinity) return kBf16Nan;
  const float scale = std::bit_cast<float>(largest_bits) / 127.0F;
  if (scale < kSmallest) return 0;
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(scale) + 0xffff) >> 16);
}

void DecodeBlock(WireType type, const std::byte* in, float* out, int64_t n) {
  if (type == WireType::kBf16) {
    uint16_t halves[kWireBlock];
    std::memcpy(halves, in, n * sizeof(uint16_t));
    DecodeBf16(halves, out, n);
    return;
  }
  uint16_t scale;
  std::memcpy(&scale, in, kScaleBytes);
  Dequantise(reinterpret_cast<const int8_t*>(in + kScaleBytes), FromBfloat16(scale), out, n);
}

void EncodeBlock(WireType type, const float* values, std::byte* out, int64_t n) {
  if (type == WireType::kBf16) {
    uint16_t halves[kWireBlock];
    EncodeBf16(values, halves, n);
    std::memcpy(out, halves, n * sizeof(uint16_t));
    return;
  }
  const uint16_t scale = ScaleOf(LargestBits(values, n));
  std::memcpy(out, &scale, kScaleBytes);
  auto* codes = reinterpret_cast<int8_t*>(out + kScaleBytes);
  if (scale == 0 || scale == kBf16Nan) {
    std::fill_n(codes, n, static_cast<int8_t>(scale == 0 ? 0 : 1));
  } else {
    Quantise(values, 1.0F / FromBfloat16(scale), codes, n);
  }
}

// residual = values - decoded, or nothing where that is not finite.
void KeepResidual(WireType type, const float* values, const std::byte* encoded, float* residual,
                  int64_t n) {
  if (LargestBits(values, n) >= kInfinity) {
    std::fill_n(residual, n, 0.0F);
    return;
  }
  float decoded[kWireBlock];
  DecodeBlock(type, encoded, decoded, n);
  Subtract(values, decoded, residual, n);
}

int64_t BlockBytes(WireType type) { return WireBytes(type, kWireBlock); }

void SumIntegers(absl::Span<const WireAddend> addends, float* out, int64_t n) {
  constexpr int64_t kBlock = kWireBlock / 2;
  uint64_t sum[kBlock], addend_block[kBlock];
  for (int64_t begin = 0; begin < n; begin += kWireBlock) {
    const int64_t integers = std::min(kWireBlock, n - begin) / 2;
    std::fill_n(sum, integers, 0);
    for (const WireAddend& addend : addends) {
      const size_t offset = begin * sizeof(float);
      std::memcpy(addend_block, addend.bytes + offset, integers * sizeof(uint64_t));
      AddIntegers(addend_block, sum, integers);
    }
    std::memcpy(out + begin, sum, integers * sizeof(uint64_t));
  }
}

}  // namespace

int64_t WireBytes(WireType type, int64_t n) {
  switch (type) {
    case WireType::kFp32:
    case WireType::kInt64:
      return n * 4;
    case WireType::kBf16:
      return n * 2;
    case WireType::kInt8:
      return n + (n + kWireBlock - 1) / kWireBlock * kScaleBytes;
  }
  return 0;
}

void EncodeInPlace(WireType type, absl::Span<float> values, absl::Span<float> residual) {
  if (!IsEncoded(type)) return;
  const auto size = static_cast<int64_t>(values.size());
  auto* out = reinterpret_cast<std::byte*>(values.data());
  float block[kWireBlock];
  // Forwards: the form of a block is written where values were that have been read.
  for (int64_t begin = 0; begin < size; begin += kWireBlock, out += BlockBytes(type)) {
    const int64_t n = std::min(kWireBlock, size - begin);
    std::memcpy(block, values.data() + begin, n * sizeof(float));
    if (!residual.empty()) AddTo(residual.data() + begin, block, n);
    EncodeBlock(type, block, out, n);
    if (!residual.empty()) KeepResidual(type, block, out, residual.data() + begin, n);
  }
}

void DecodeInPlace(WireType type, absl::Span<float> values) {
  if (!IsEncoded(type) || values.empty()) return;
  const auto size = static_cast<int64_t>(values.size());
  const auto* in = reinterpret_cast<const std::byte*>(values.data());
  float block[kWireBlock];
  // Backwards: values are written where forms were that have been read.
  for (int64_t index = (size - 1) / kWireBlock; index >= 0; --index) {
    const int64_t begin = index * kWireBlock, n = std::min(kWireBlock, size - begin);
    DecodeBlock(type, in + index * BlockBytes(type), block, n);
    std::memcpy(values.data() + begin, block, n * sizeof(float));
  }
}

void AddResidual(absl::Span<float> values, absl::Span<float> residual) {
  AddTo(residual.data(), values.data(), static_cast<int64_t>(residual.size()));
  std::fill(residual.begin(), residual.end(), 0.0F);
}

void SumInRankOrder(WireType type, absl::Span<const WireAddend> addends, float* out, int64_t n) {
  if (type == WireType::kInt64) return SumIntegers(addends, out, n);
  float sum[kWireBlock], decoded[kWireBlock];
  for (int64_t begin = 0; begin < n; begin += kWireBlock) {
    const int64_t size = std::min(kWireBlock, n - begin);
    for (const WireAddend& addend : addends) {
      const bool first = &addend == &addends.front();
      if (addend.encoded && IsEncoded(type)) {
        const std::byte* block = addend.bytes + begin / kWireBlock * BlockBytes(type);
        DecodeBlock(type, block, first ? sum : decoded, size);
        if (!first) AddTo(decoded, sum, size);
      } else {
        const float* values = reinterpret_cast<const float*>(addend.bytes) + begin;
        first ? void(std::memcpy(sum, values, size * sizeof(float))) : AddTo(values, sum, size);
      }
    }
    std::memcpy(out + begin, sum, size * sizeof(float));
  }
}

}  // namespace espalier
