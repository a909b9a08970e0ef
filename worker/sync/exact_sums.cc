#include "worker/sync/exact_sums.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/simd.h"
#include "worker/tensor/torch_compat.h"

namespace espalier {
namespace {

constexpr int64_t kPiece = 1 << 15;  // elements that are worth a thread

// Returns how many could not be added. A product by a power of two is exact, and a float that is
// larger than 2^52 such units has no fraction, so that one rounding is made.
ESPALIER_SIMD_CLONES
int64_t AddPiece(float* gradient, int64_t* sums, int64_t n, double unit, double most) {
  int64_t lost = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double units = static_cast<double>(gradient[i]) * unit;
    const bool fits = std::fabs(units) <= most;  // false of NaN
    sums[i] += static_cast<int64_t>(std::nearbyint(fits ? units : 0.0));
    lost += fits ? 0 : 1;
    gradient[i] = 0;
  }
  return lost;
}

ESPALIER_SIMD_CLONES
void TakePiece(int64_t* sums, float* gradient, int64_t n, double factor) {
  for (int64_t i = 0; i < n; ++i) {
    gradient[i] = static_cast<float>(static_cast<double>(sums[i]) * factor);
    sums[i] = 0;
  }
}

// Runs body(begin, size) for pieces of [0, size) on all threads.
template <typename Body>
void ForPieces(int64_t size, const Body& body) {
  at::parallel_for(0, size, kPiece, [&](int64_t begin, int64_t end) { body(begin, end - begin); });
}

// The least power of two that is not below it.
int64_t RoundUp(int64_t number) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, number))));
}

}  // namespace

absl::Status ExactSums::Keep(int64_t elements, const Batch& batch) {
  unit_ = std::ldexp(1.0, kFractionBits) / static_cast<double>(RoundUp(batch.tokens));
  most_ = std::ldexp(1.0, 62) / static_cast<double>(RoundUp(batch.addends));
  return CatchTorch(
      absl::StrCat("allocating ", BytesOf(elements), " bytes for sums that are reproducible"),
      [&] { sums_ = torch::zeros({elements + 1}, torch::kInt64); });
}

int64_t* ExactSums::At(int64_t element) { return sums_.data_ptr<int64_t>() + element; }

void ExactSums::Add(int64_t begin, absl::Span<float> gradient, double factor) {
  const double unit = unit_ / factor;
  std::atomic<int64_t> lost = 0;
  ForPieces(static_cast<int64_t>(gradient.size()), [&](int64_t from, int64_t size) {
    lost += AddPiece(gradient.data() + from, At(begin + from), size, unit, most_);
  });
  *At(sums_.numel() - 1) += lost;
}

absl::Span<float> ExactSums::Of(int64_t begin, int64_t size) {
  return {reinterpret_cast<float*>(At(begin)), static_cast<size_t>(2 * size)};
}

absl::Span<float> ExactSums::Lost() { return Of(sums_.numel() - 1, 1); }

void ExactSums::Take(int64_t begin, absl::Span<float> gradient, double factor) {
  const bool lost = *At(sums_.numel() - 1) != 0;
  const double value = lost ? std::numeric_limits<double>::quiet_NaN() : factor / unit_;
  ForPieces(static_cast<int64_t>(gradient.size()), [&](int64_t from, int64_t size) {
    TakePiece(At(begin + from), gradient.data() + from, size, value);
  });
}

void ExactSums::Restart() { *At(sums_.numel() - 1) = 0; }

double RoundedForSum(double loss) {
  constexpr double kUnits = 65536;
  return std::nearbyint(loss * kUnits) / kUnits;
}

}  // namespace espalier
