// The arithmetic of the optimizer on plain memory, one block at a time (adamw_math.h: the same bits
// on every processor); the sum of squares adds exact products in a fixed order.
// Used by optimizer.cc and moments.cc. Any thread.
#pragma once

#include <cstdint>

#include "worker/kernels/adamw_math.h"

namespace espalier::cpu {

struct AdamWBlock {
  float* value;
  float* gradient;  // set to 0 once used
  float* first;     // first moment
  float* second;    // second moment
  int64_t size;
};
void AdamWUpdate(const AdamWBlock& block, const AdamWStep& step);

// average += (value - average) * share.
void AverageUpdate(const float* value, float* average, int64_t size, float share);

struct AdamW8Block {
  float* value;
  float* gradient;  // set to 0 once used
  Moments8 moments;
  RandomPlace random;
  int64_t size;
};
void AdamW8Update(const AdamW8Block& block, const AdamWStep& step);

// `size` moments from 8-bit optimizer state and back, to the nearest.
void DecodeMoments(const Moments8& from, int64_t size, float* first, float* second);
void EncodeMoments(const float* first, const float* second, int64_t size, const Moments8& to);

// Sum of the squares of x[0 .. n), n at most 2^20.
double SumOfSquares(const float* x, int64_t n);

}  // namespace espalier::cpu
