#include "worker/ops/dropout.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "common/base/random.h"
#include "common/base/simd.h"
#include "worker/ops/operand_bounds.h"

namespace espalier {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Of 64-bit words that exist at a time while a mask is made by LibTorch's operators; a handful of
// such tensors do.
constexpr int64_t kMostMaskBytes = int64_t{1} << 26;

// One word of SplitMix64 decides four channels, 16 bits each.
constexpr int64_t kChannels = 4, kBits = 16;
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

struct Choice {
  uint64_t threshold;  // bits below it: dropped
  float kept_factor;
};

Choice ChoiceOf(double rate) {
  constexpr double kRange = 1 << kBits;
  const double threshold = std::min(std::round(rate * kRange), kRange - 1);
  return {static_cast<uint64_t>(threshold), static_cast<float>(kRange / (kRange - threshold))};
}

uint64_t SiteKey(int64_t site) { return MixBits(kGolden * static_cast<uint64_t>(site + 1)); }

// The channels of one position, whose stream begins at `state`.
ESPALIER_SIMD_CLONES void MaskRow(uint64_t state, Choice choice, float* to, int64_t channels) {
  for (int64_t word = 0; word < channels / kChannels; ++word) {
    const uint64_t bits = MixBits(state + kGolden * static_cast<uint64_t>(word + 1));
    for (int64_t i = 0; i < kChannels; ++i) {
      const uint64_t own = bits >> (kBits * i) & 0xffff;
      to[word * kChannels + i] = own < choice.threshold ? 0.0F : choice.kept_factor;
    }
  }
  const int64_t done = channels / kChannels * kChannels;
  uint64_t bits = MixBits(state + kGolden * static_cast<uint64_t>(done / kChannels + 1));
  for (int64_t c = done; c < channels; ++c, bits >>= kBits) {
    to[c] = (bits & 0xffff) < choice.threshold ? 0.0F : choice.kept_factor;
  }
}

Tensor CpuDropoutMask(const Tensor& like, const DropoutKeys& keys, int64_t site) {
  const Choice choice = ChoiceOf(keys.rate);
  const int64_t time = like.size(1), channels = like.size(2);
  Tensor mask = torch::empty(like.sizes(), torch::kFloat);
  float* to = mask.data_ptr<float>();
  const int64_t* key = keys.of_row.data_ptr<int64_t>();
  at::parallel_for(0, like.size(0) * time, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint64_t sequence = MixBits(static_cast<uint64_t>(key[row / time]) ^ SiteKey(site));
      const uint64_t position = kGolden * static_cast<uint64_t>(row % time + 1);
      MaskRow(MixBits(sequence + position), choice, to + row * channels, channels);
    }
  });
  return mask.to(like.scalar_type());
}

// x >> n of the 64 bits as they are: int64 shifts copies of the sign in.
Tensor ShiftRight(const Tensor& x, int64_t n) {
  return x.bitwise_right_shift(n).bitwise_and_((int64_t{1} << (64 - n)) - 1);
}

// MixBits on int64, whose products wrap as those of uint64 do.
Tensor Mixed(Tensor x) {
  x = x.bitwise_xor(ShiftRight(x, 30)).mul_(static_cast<int64_t>(0xbf58476d1ce4e5b9ULL));
  x.bitwise_xor_(ShiftRight(x, 27)).mul_(static_cast<int64_t>(0x94d049bb133111ebULL));
  return x.bitwise_xor_(ShiftRight(x, 31));
}

// 1 .. n times the golden ratio, [n].
Tensor Steps(int64_t n, const Tensor& like) {
  return torch::arange(1, n + 1, like.options()).mul_(static_cast<int64_t>(kGolden));
}

// The factors of rows whose words are given, [rows, words] -> [rows, channels], fp32.
Tensor MaskOf(const Tensor& words, Choice choice, int64_t channels) {
  std::vector<Tensor> own;
  for (int64_t i = 0; i < kChannels; ++i) {
    own.push_back(words.bitwise_right_shift(kBits * i).bitwise_and_(0xffff));
  }
  const Tensor bits = torch::stack(own, 2).view({words.size(0), -1}).narrow(1, 0, channels);
  return bits.ge(static_cast<int64_t>(choice.threshold)).to(torch::kFloat).mul_(choice.kept_factor);
}

struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& of_row, double rate,
                        int64_t site) {
    ctx->save_for_backward({of_row});
    ctx->saved_data["rate"] = rate;
    ctx->saved_data["site"] = site;
    return x * DropoutMask(x, {rate, of_row}, site);
  }
  // The mask is made again: it is as large as what it would be kept for.
  static variable_list backward(AutogradContext* ctx, variable_list upstream) {
    const DropoutKeys keys{ctx->saved_data["rate"].toDouble(), ctx->get_saved_variables()[0]};
    const Tensor& dy = upstream[0];
    return {dy * DropoutMask(dy, keys, ctx->saved_data["site"].toInt()), Tensor(), Tensor(),
            Tensor()};
  }
};

}  // namespace

Tensor internal::GenericDropoutMask(const Tensor& like, const DropoutKeys& keys, int64_t site) {
  const int64_t batch = like.size(0), time = like.size(1), channels = like.size(2);
  const int64_t words = (channels + kChannels - 1) / kChannels;
  const Tensor sequence = Mixed(keys.of_row.bitwise_xor(static_cast<int64_t>(SiteKey(site))));
  const Tensor position =
      Mixed(sequence.view({batch, 1}) + Steps(time, sequence)).view({batch * time, 1});
  const Tensor steps = Steps(words, sequence);
  const Tensor mask = torch::empty({batch * time, channels}, like.options());
  const int64_t row_bytes = words * kChannels * static_cast<int64_t>(sizeof(int64_t));
  const int64_t step = RowsWithin(row_bytes, batch * time, kMostMaskBytes);
  for (int64_t begin = 0; begin < batch * time; begin += step) {
    const int64_t rows = std::min(step, batch * time - begin);
    mask.narrow(0, begin, rows)
        .copy_(
            MaskOf(Mixed(position.narrow(0, begin, rows) + steps), ChoiceOf(keys.rate), channels));
  }
  return mask.view(like.sizes());
}

Tensor DropoutMask(const Tensor& like, const DropoutKeys& keys, int64_t site) {
  return like.is_cpu() ? CpuDropoutMask(like, keys, site)
                       : internal::GenericDropoutMask(like, keys, site);
}

Tensor Dropout(const Tensor& x, const DropoutKeys& keys, int64_t site) {
  if (keys.rate == 0) return x;
  return DropoutFunction::apply(x, keys.of_row, keys.rate, site);
}

}  // namespace espalier
