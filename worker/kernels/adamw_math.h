// AdamW on one element, with fp32 or 8-bit optimizer state: the arithmetic that the CPU's kernel
// (worker/kernels/adamw_kernel.cc) and the CUDA ones (cuda_adamw_kernels.cu) share. The same inputs
// give the same bits on every processor: each operation is exact or rounded once, and both files
// are compiled without contraction. That is what lets ranks on unlike machines update their
// replicas on their own. Used by worker/kernels, worker/kernels/cuda and worker/optimizer. Any
// thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define ESPALIER_HOST_DEVICE __host__ __device__
#else
#define ESPALIER_HOST_DEVICE
#endif

namespace espalier {

struct AdamWStep {
  float gradient_scale;  // 1 / tokens, times the clipping factor
  float beta1;
  float beta2;
  float step_size;    // learning rate / (1 - beta1^t)
  float second_root;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float keep;  // 1 - learning rate * weight decay
  // 1 for Adam-atan2, 0 for AdamW. Then step_size is the learning rate / (1 - beta1^t), and eps is
  // not used.
  float first_factor = 0;
};

// Loshchilov and Hutter 2019, algorithm 2, lines 6 to 12, with decay on the value as it is:
// moments m and v, parameter p.
ESPALIER_HOST_DEVICE inline void AdamWElement(const AdamWStep& f, float gradient, float& m,
                                              float& v, float& p) {
  const float g = gradient * f.gradient_scale;
  m = f.beta1 * m + (1 - f.beta1) * g;
  v = f.beta2 * v + (1 - f.beta2) * (g * g);
  p = p * f.keep - f.step_size * m / (sqrtf(v) * f.second_root + f.eps);
}

// 8-bit optimizer state: a moment is a code times the unit of its block, as in Dettmers et al. 2021
// ("8-bit optimizers via block-wise quantization"), with codes that need no table: the first moment
// is +-c^4 unit, the root of the second c^4 unit. So a thousandth of a block's largest is still
// known to a tenth, and to a twentieth; linear codes would lose it.
// Codes are rounded up or down at random, so that the mean is right: a moment that decays by less
// than a step of its code would otherwise never decay.
struct Moments8 {
  int8_t* first;
  uint8_t* second;
  float* first_unit;  // one of each moment8::kBlock elements
  float* second_unit;
};
// Where random numbers of an update come from.
struct RandomPlace {
  uint32_t key;            // of the step
  uint32_t first_element;  // place of the first among all elements, modulo 2^32
};

namespace moment8 {

constexpr int64_t kBlock = 256;  // elements that share a unit
constexpr float kFirstSpan = 127.0F * 127.0F * 127.0F * 127.0F;
constexpr float kSecondSpan = 255.0F * 255.0F * 255.0F * 255.0F;
constexpr float kNearest = 0.5F;  // in place of a random number
constexpr float kSmallestUnit = 0x1p-126F;
constexpr float kLargestFirst = 0x1p126F;  // what is larger, or no number, is taken for it
constexpr float kLargestRoot = 0x1p63F;    // of the second: its square is a number

// Of a block whose largest first moment, or root of the second, is given. It and its inverse are
// finite.
ESPALIER_HOST_DEVICE inline float Unit(float largest, float most, float span) {
  const float unit = (largest < most ? largest : most) / span;
  return unit > kSmallestUnit ? unit : kSmallestUnit;
}
ESPALIER_HOST_DEVICE inline float FirstUnit(float largest) {
  return Unit(largest, kLargestFirst, kFirstSpan);
}
ESPALIER_HOST_DEVICE inline float SecondUnit(float largest) {
  return Unit(sqrtf(largest), kLargestRoot, kSecondSpan);
}

ESPALIER_HOST_DEVICE inline float FourthPower(float x) { return (x * x) * (x * x); }

ESPALIER_HOST_DEVICE inline float DecodeFirst(int8_t code, float unit) {
  const float m = unit * FourthPower(code);
  return code < 0 ? -m : m;
}

ESPALIER_HOST_DEVICE inline float DecodeSecond(uint8_t code, float unit) {
  const float root = unit * FourthPower(code);
  return root * root;
}

// The smaller of two numbers that are not negative; `most` for what is none. By their bits, whose
// order is theirs: compilers vectorise that, and not a choice before a conversion.
ESPALIER_HOST_DEVICE inline float AtMost(float x, float most) {
  int32_t bits, most_bits;
  memcpy(&bits, &x, sizeof(bits));
  memcpy(&most_bits, &most, sizeof(most_bits));
  bits = bits < most_bits ? bits : most_bits;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

// The code whose fourth power is just below x, but not the last.
ESPALIER_HOST_DEVICE inline float CodeBelow(float x, float last) {
  return static_cast<float>(static_cast<int32_t>(AtMost(sqrtf(sqrtf(x)), last - 0.5F)));
}

// random: uniform in [0, 1).
ESPALIER_HOST_DEVICE inline int8_t EncodeFirst(float m, float inverse_unit, float random) {
  const float x = fabsf(m) * inverse_unit, low = CodeBelow(x, 127);
  const float from = FourthPower(low), step = FourthPower(low + 1) - from;
  const float code = low + (x - from > random * step ? 1.0F : 0.0F);
  return static_cast<int8_t>(static_cast<int32_t>(m < 0 ? -code : code));
}

// What is not zero never becomes zero: it divides. The mean is that of the moment, not of its root.
ESPALIER_HOST_DEVICE inline uint8_t EncodeSecond(float v, float inverse_unit, float random) {
  const float x = sqrtf(v) * inverse_unit, low = CodeBelow(x, 255);
  const float from = FourthPower(low) * FourthPower(low);
  const float step = FourthPower(low + 1) * FourthPower(low + 1) - from;
  const float code = low + (x * x - from > random * step ? 1.0F : 0.0F);
  return static_cast<uint8_t>(static_cast<int32_t>(v > 0 && code < 1 ? 1.0F : code));
}

// 32 bits that look random, of an element in a step (Wellons 2018, "lowbias32").
ESPALIER_HOST_DEVICE inline uint32_t RandomBits(uint32_t key, uint32_t element) {
  uint32_t x = key ^ element;
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}
// Two numbers in [0, 1) of them.
ESPALIER_HOST_DEVICE inline float LowRandom(uint32_t bits) {
  return static_cast<float>(static_cast<int32_t>(bits & 0xffffU)) * 0x1p-16F;
}
ESPALIER_HOST_DEVICE inline float HighRandom(uint32_t bits) {
  return static_cast<float>(static_cast<int32_t>(bits >> 16)) * 0x1p-16F;
}

}  // namespace moment8
}  // namespace espalier
