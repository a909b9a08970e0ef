// ExactSums: gradients added as 64-bit integers, multiples of one small number, so that neither the
// order of the addends nor who adds them changes a bit of the sum: what train.reproducible stands
// on. An addend is rounded once, by itself, to the nearest multiple; the multiple follows from the
// job alone. Used by gradient_exchange.h, worker/state/replica.h, which owns one,
// worker/memory/memory_advice.cc and worker/train. Compute thread; Add and Of also from the thread
// of the backward pass.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/tensor/torch.h"

namespace espalier {

class ExactSums {
 public:
  // What a step adds up, at most: `addends` gradients of sums over `tokens` tokens in all.
  struct Batch {
    int64_t addends = 1;
    int64_t tokens = 1;
  };
  // The mean gradient over the tokens is known to within 2^-kFractionBits per addend (3.6e-15,
  // where AdamW's eps is 1e-8) and may be as large as 2^(62 - kFractionBits), 16,384, in an
  // element.
  static constexpr int kFractionBits = 48;

  // From now on sums of so many elements are kept, zero. RESOURCE_EXHAUSTED names the bytes.
  absl::Status Keep(int64_t elements, const Batch& batch);
  bool kept() const { return sums_.defined(); }
  // Bytes that Keep takes.
  static int64_t BytesOf(int64_t elements) { return (elements + 1) * int64_t{sizeof(int64_t)}; }

  // Adds elements [begin, begin + size) of a gradient that was multiplied by `factor`, a power of
  // two, and makes them zero. What is not finite, or larger than an addend may be, is counted.
  void Add(int64_t begin, absl::Span<float> gradient, double factor);
  // The memory of the sums of these elements, as an exchange takes it (WireType::kInt64).
  absl::Span<float> Of(int64_t begin, int64_t size);
  // The memory of the number of elements that could not be added.
  absl::Span<float> Lost();
  // Sets the elements to their sums times `factor`, rounded once, and the sums to zero; to NaN, all
  // of them, when an element of any addend could not be added.
  void Take(int64_t begin, absl::Span<float> gradient, double factor);
  // All elements are taken: a step begins.
  void Restart();

 private:
  int64_t* At(int64_t element);

  torch::Tensor sums_;  // [elements + 1] int64, on the host; the last counts what was lost
  double unit_ = 1;     // integers per 1 of a gradient
  double most_ = 0;     // integers of an element of one addend
};

// The loss of a pass, rounded to a multiple of 2^-16: doubles add such numbers without rounding, so
// that their sum does not depend on the order either.
double RoundedForSum(double loss);

}  // namespace espalier
