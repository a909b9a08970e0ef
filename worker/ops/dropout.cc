#include "worker/ops/dropout.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "common/base/random.h"
#include "common/base/simd.h"
#include "worker/ops/cuda_ops.h"
#include "worker/ops/operand_bounds.h"

namespace espalier {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Of words that exist at a time while a mask is made by LibTorch's operators; a handful of such
// tensors do.
constexpr int64_t kMostMaskBytes = int64_t{1} << 26;

// One word of 32 bits decides two channels, 16 bits each. Words of 64 bits would be more than MPS
// can be trusted with, which has got shifts and products of them wrong (pytorch#147889).
constexpr int64_t kChannels = 2, kBits = 16;
constexpr uint32_t kGolden = 0x9e3779b9U;
constexpr uint32_t kFirst = 0x7feb352dU, kSecond = 0x846ca68bU;

constexpr double kRange = 1 << kBits;

// Bits below it: dropped.
uint32_t ThresholdOf(double rate) {
  return static_cast<uint32_t>(std::min(std::round(rate * kRange), kRange - 1));
}

uint64_t SiteKey(int64_t site) {
  return MixBits(0x9e3779b97f4a7c15ULL * static_cast<uint64_t>(site + 1));
}

// A permutation of 32-bit words that mixes well (C. Wellons, hash-prospector, 2018: lowbias32).
inline uint32_t Mixed(uint32_t x) {
  x = (x ^ x >> 16) * kFirst;
  x = (x ^ x >> 15) * kSecond;
  return x ^ x >> 16;
}

uint32_t RowKey(int64_t key, int64_t site) {
  const uint64_t both = static_cast<uint64_t>(key) ^ SiteKey(site);
  return Mixed(Mixed(static_cast<uint32_t>(both)) ^ static_cast<uint32_t>(both >> 32));
}

// The channels of one position, whose words follow from `state`.
ESPALIER_SIMD_CLONES void MaskRow(uint32_t state, uint32_t threshold, float* to, int64_t channels) {
  const int64_t words = channels / kChannels;
  for (int64_t word = 0; word < words; ++word) {
    const uint32_t bits = Mixed(state + kGolden * static_cast<uint32_t>(word + 1));
    to[2 * word] = (bits & 0xffff) < threshold ? 0.0F : 1.0F;
    to[2 * word + 1] = bits >> kBits < threshold ? 0.0F : 1.0F;
  }
  if (channels % kChannels == 0) return;
  const uint32_t bits = Mixed(state + kGolden * static_cast<uint32_t>(words + 1));
  to[channels - 1] = (bits & 0xffff) < threshold ? 0.0F : 1.0F;
}

Tensor CpuDropoutMask(const Tensor& like, const DropoutKeys& keys, int64_t site) {
  const uint32_t threshold = ThresholdOf(keys.rate);
  const int64_t time = like.size(1), channels = like.size(2);
  Tensor mask = torch::empty(like.sizes(), torch::kFloat);
  float* to = mask.data_ptr<float>();
  const int64_t* key = keys.of_row.data_ptr<int64_t>();
  const int64_t columns = keys.of_row.dim() == 1 ? time : 1;  // that have one key
  const int64_t* own = keys.positions.defined() ? keys.positions.data_ptr<int64_t>() : nullptr;
  at::parallel_for(0, like.size(0) * time, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t place = own == nullptr ? row % time : own[row];
      const uint32_t position = kGolden * static_cast<uint32_t>(place + 1);
      MaskRow(Mixed(RowKey(key[row / columns], site) + position), threshold, to + row * channels,
              channels);
    }
  });
  return mask.to(like.scalar_type());
}

int64_t Signed(uint32_t word) { return static_cast<int32_t>(word); }

// x >> n of the 32 bits as they are: int32 shifts copies of the sign in.
Tensor ShiftRight(const Tensor& x, int64_t n) {
  return x.bitwise_right_shift(n).bitwise_and_((int64_t{1} << (32 - n)) - 1);
}

// Mixed on int32, whose products wrap as those of uint32 do.
Tensor Mixed(Tensor x) {
  x = x.bitwise_xor(ShiftRight(x, 16)).mul_(Signed(kFirst));
  x.bitwise_xor_(ShiftRight(x, 15)).mul_(Signed(kSecond));
  return x.bitwise_xor_(ShiftRight(x, 16));
}

// 1 .. n times the golden ratio, [n].
Tensor Steps(int64_t n, const Tensor& like) {
  return torch::arange(1, n + 1, like.options()).mul_(Signed(kGolden));
}

// What is kept in rows whose words are given, [rows, words] -> [rows, channels].
Tensor MaskOf(const Tensor& words, uint32_t threshold, int64_t channels) {
  const Tensor bits = torch::stack({words.bitwise_and(0xffff), ShiftRight(words, kBits)}, 2)
                          .view({words.size(0), -1})
                          .narrow(1, 0, channels);
  return bits.ge(static_cast<int64_t>(threshold));
}

// Dense rows of a device that hashes in one launch.
bool HasDropKernel(const Tensor& x) {
  return x.is_cuda() && cuda::Apply(x) && x.dim() == 3 && x.is_contiguous();
}

// A factor of 16 bits would be rounded, alike for all values. What it is above 1 is a small part of
// the result, and so is its error.
Tensor Dropped(const Tensor& x, const DropoutKeys& keys, int64_t site) {
  const Tensor kept = KeptOf(x, keys, site);
  return torch::add(kept, kept, KeptFactor(keys.rate) - 1);
}

struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& of_row,
                        const Tensor& positions, double rate, int64_t site) {
    ctx->save_for_backward({of_row, positions});
    ctx->saved_data["rate"] = rate;
    ctx->saved_data["site"] = site;
    return Dropped(x, KeysOf(rate, of_row, positions), site);
  }
  // The mask is made again: it is as large as what it would be kept for.
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const variable_list saved = ctx->get_saved_variables();
    const DropoutKeys keys = KeysOf(ctx->saved_data["rate"].toDouble(), saved[0], saved[1]);
    return {Dropped(upstream[0], keys, ctx->saved_data["site"].toInt()), Tensor(), Tensor(),
            Tensor(), Tensor()};
  }

 private:
  // LibTorch takes no undefined inputs: without positions they are empty.
  static DropoutKeys KeysOf(double rate, const Tensor& of_row, const Tensor& positions) {
    DropoutKeys keys{.rate = rate, .of_row = of_row};
    if (positions.numel() > 0) keys.positions = positions;
    return keys;
  }
};

}  // namespace

Tensor internal::GenericDropoutMask(const Tensor& like, const DropoutKeys& keys, int64_t site) {
  const int64_t batch = like.size(0), time = like.size(1), channels = like.size(2);
  const int64_t words = (channels + kChannels - 1) / kChannels;
  const uint64_t of_site = SiteKey(site);
  // Of a single row every stride is contiguous, which is not enough to see its halves.
  const Tensor halves =
      keys.of_row.clone(torch::MemoryFormat::Contiguous).view(torch::kInt).view({-1, 2});
  const Tensor low = halves.select(1, 0).bitwise_xor(Signed(static_cast<uint32_t>(of_site)));
  const Tensor high = halves.select(1, 1).bitwise_xor(Signed(static_cast<uint32_t>(of_site >> 32)));
  const Tensor row = Mixed(Mixed(low).bitwise_xor_(high)).view({batch, -1});
  const Tensor places = keys.positions.defined()
                            ? keys.positions.to(torch::kInt).add_(1).mul_(Signed(kGolden))
                            : Steps(time, row);
  const Tensor position = Mixed(row + places).view({batch * time, 1});
  const Tensor steps = Steps(words, row);
  const Tensor mask = torch::empty({batch * time, channels}, like.options());
  const int64_t row_bytes = words * kChannels * static_cast<int64_t>(sizeof(int32_t));
  const int64_t step = RowsWithin(row_bytes, batch * time, kMostMaskBytes);
  for (int64_t begin = 0; begin < batch * time; begin += step) {
    const int64_t rows = std::min(step, batch * time - begin);
    const Tensor bits = Mixed(position.narrow(0, begin, rows) + steps);
    mask.narrow(0, begin, rows).copy_(MaskOf(bits, ThresholdOf(keys.rate), channels));
  }
  return mask.view(like.sizes());
}

Tensor KeptOf(const Tensor& x, const DropoutKeys& keys, int64_t site) {
  if (!HasDropKernel(x)) return x * DropoutMask(x, keys, site);
  const Tensor y = torch::empty_like(x);
  cuda::Drop(x, keys.of_row, keys.positions, SiteKey(site), ThresholdOf(keys.rate), /*add=*/false,
             y);
  return y;
}

void AddKept(const Tensor& to, const Tensor& x, const DropoutKeys& keys, int64_t site) {
  if (!HasDropKernel(x)) {
    Tensor(to).add_(Tensor(x).mul_(DropoutMask(x, keys, site)));
    return;
  }
  cuda::Drop(x, keys.of_row, keys.positions, SiteKey(site), ThresholdOf(keys.rate), /*add=*/true,
             to);
}

double KeptFactor(double rate) { return kRange / (kRange - ThresholdOf(rate)); }

Tensor DropoutMask(const Tensor& like, const DropoutKeys& keys, int64_t site) {
  return like.is_cpu() ? CpuDropoutMask(like, keys, site)
                       : internal::GenericDropoutMask(like, keys, site);
}

Tensor Dropout(const Tensor& x, const DropoutKeys& keys, int64_t site) {
  if (keys.rate == 0) return x;
  const Tensor positions =
      keys.positions.defined() ? keys.positions : torch::empty({0}, keys.of_row.options());
  return DropoutFunction::apply(x, keys.of_row, positions, keys.rate, site);
}

}  // namespace espalier
