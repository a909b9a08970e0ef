// The types in which gradients travel, and their arithmetic: how values become bytes on the wire,
// and how the addends of all ranks are summed. Shared by the implementations of Collective, so that
// both give the same bits; the same on every processor. Used by worker/collective and worker/sync.
// Plain functions: any thread.
//
// fp32: as they are. bf16: rounded to nearest even. int8: in blocks of kWireBlock values with one
// scale (bf16): q = round(value / scale), scale = largest / 127; what the rounding leaves out goes
// into a residual and is added to the values of the next time (error feedback: Seide et al. 2014,
// Karimireddy et al. 2019). int64: the memory of two values is one integer (exact_sums.h makes
// them), added as such, modulo 2^64: the one sum that is the same in any order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace espalier {

enum class WireType { kFp32, kBf16, kInt8, kInt64 };

// Whether values travel in another form than they have in memory.
constexpr bool IsEncoded(WireType type) {
  return type == WireType::kBf16 || type == WireType::kInt8;
}

// Values that share a scale. Blocks are counted from the begin of what is encoded; chunks are whole
// multiples of it, so that the bits do not depend on the size of chunks.
inline constexpr int64_t kWireBlock = 256;

// Bytes of n encoded values; never more than 4 n.
int64_t WireBytes(WireType type, int64_t n);

// Replaces the values by their encoded form, in the first WireBytes of their memory. `residual` is
// empty or of the same size: added to the values before, and set to what the form leaves out. A
// block with a value that is not finite stays not finite when decoded, and leaves no residual.
void EncodeInPlace(WireType type, absl::Span<float> values, absl::Span<float> residual);

// The reverse; the bits are the same wherever it is done.
void DecodeInPlace(WireType type, absl::Span<float> values);

// values += residual; residual = 0. Exact: for a rank that has nobody to send to.
void AddResidual(absl::Span<float> values, absl::Span<float> residual);

// What one rank adds to a sum.
struct WireAddend {
  const std::byte* bytes;
  bool encoded;  // else as in memory
};

// out[i] = ((addend_0[i] + addend_1[i]) + addend_2[i]) + ... in fp32: always in the order of the
// ranks, so that the rounding is the same wherever and whenever it is done; with int64 as integers.
// `out` may be an addend that is not encoded.
void SumInRankOrder(WireType type, absl::Span<const WireAddend> addends, float* out, int64_t n);

}  // namespace espalier
