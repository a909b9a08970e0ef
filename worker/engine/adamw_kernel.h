// The arithmetic of the optimizer on plain memory, one block at a time. The same inputs give the
// same bits on every processor: each element's operations are fixed and not contracted (CMake
// compiles this file with -ffp-contract=off), and the sum of squares adds exact products in a fixed
// order. That is what lets ranks on unlike machines update their replicas on their own.
// Used by optimizer.cc only. Any thread.
#pragma once

#include <cstdint>

namespace espalier::cpu {

struct AdamWBlock {
  float* value;
  float* gradient;  // set to 0 once used
  float* first;     // first moment
  float* second;    // second moment
  int64_t size;
};

struct AdamWFactors {
  float gradient_scale;  // 1 / tokens, times the clipping factor
  float beta1;
  float beta2;
  float step_size;    // learning rate / (1 - beta1^t)
  float second_root;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float keep;  // 1 - learning rate * weight decay
};

// Loshchilov and Hutter 2019, algorithm 2, lines 6 to 12, with decay on the values as they are.
void AdamWUpdate(const AdamWBlock& block, const AdamWFactors& factors);

// Sum of the squares of x[0 .. n), n at most 2^20.
double SumOfSquares(const float* x, int64_t n);

}  // namespace espalier::cpu
