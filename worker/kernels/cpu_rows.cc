#include "worker/kernels/cpu_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/base/simd.h"

namespace espalier::cpu {
namespace {

// exp(x) to 2 units in the last place, without branches so that loops vectorise: x = n ln 2 + r,
// |r| <= ln 2 / 2, exp(r) by its Taylor polynomial of degree 6 (remainder below 1e-8).
inline __attribute__((always_inline)) float Exp(float x) {
  x = std::min(std::max(x, -87.0F), 88.0F);
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504F + kRound) - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  return p * std::bit_cast<float>(exponent);
}

inline __attribute__((always_inline)) float Sigmoid(float x) { return 1.0F / (1.0F + Exp(-x)); }

#define ESPALIER_INLINE inline __attribute__((always_inline))

// Compilers vectorise the choice between two numbers, and not std::max of references to them.
ESPALIER_INLINE float Largest(const float* x, int64_t n) {
  float max = -INFINITY;
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

template <typename Real>
ESPALIER_INLINE SoftmaxRow Exponentials(const float* x, Real* to, int64_t n, float scale) {
  const float max = scale * Largest(x, n);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const float e = Exp(scale * x[i] - max);
    to[i] = FromFloat<Real>(e);
    sum += e;
  }
  return {.max = max, .sum = sum};
}

template <typename Real>
ESPALIER_INLINE void SoftmaxGradient(const float* x, const float* d, const SoftmaxRowGradient& of,
                                     Real* p, Real* s, int64_t n) {
  const float scale = of.scale, log_sum = of.log_sum, delta = of.delta;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float probability = Exp(scale * x[i] - log_sum);
    s[i] = FromFloat<Real>(scale * probability * (d[i] - delta));
    p[i] = FromFloat<Real>(probability);
  }
}

template <typename Real>
ESPALIER_INLINE float Dot(const Real* a, const Real* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += ToFloat(a[i]) * ToFloat(b[i]);
  return sum;
}

template <typename In, typename Out>
ESPALIER_INLINE float RmsNorm(const In* x, const float* weight, Out* out, int64_t n, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += ToFloat(x[i]) * ToFloat(x[i]);
  const float r = 1.0F / std::sqrt(sum / static_cast<float>(n) + eps);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = FromFloat<Out>(ToFloat(x[i]) * r * weight[i]);
  return r;
}

// With g = dy * weight: dx = r g - x r^3 mean(g x); dweight += dy x r.
template <bool kOther, typename In, typename Out>
ESPALIER_INLINE void RmsNormGradient(const In* x, const float* weight, const Out* dy, float r,
                                     const In* other, In* dx, float* dweight, int64_t n) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < n; ++i) dot += ToFloat(dy[i]) * weight[i] * ToFloat(x[i]);
  const float pull = dot * r * r * r / static_cast<float>(n);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float xi = ToFloat(x[i]), g = ToFloat(dy[i]);
    dweight[i] += g * xi * r;
    const float own = r * g * weight[i] - xi * pull;
    dx[i] = FromFloat<In>(kOther ? own + ToFloat(other[i]) : own);
  }
}

template <typename In, typename Out>
ESPALIER_INLINE CentredRow LayerNorm(const In* x, const float* weight, const float* bias, Out* out,
                                     int64_t n, float eps) {
  const auto count = static_cast<float>(n);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += ToFloat(x[i]);
  const float mean = sum / count;
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; ++i) squares += (ToFloat(x[i]) - mean) * (ToFloat(x[i]) - mean);
  const float r = 1.0F / std::sqrt(squares / count + eps);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    out[i] = FromFloat<Out>((ToFloat(x[i]) - mean) * r * weight[i] + bias[i]);
  }
  return {.mean = mean, .r = r};
}

// With z = (x - mean) r and g = dy * weight: dx = r (g - mean(g) - z mean(g z)); dweight += dy z,
// dbias += dy.
template <bool kOther, typename In, typename Out>
ESPALIER_INLINE void LayerNormGradient(const In* x, const float* weight, const Out* dy,
                                       CentredRow of, const In* other, In* dx, NormSums sums,
                                       int64_t n) {
  const float mean = of.mean, r = of.r;
  float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t i = 0; i < n; ++i) {
    const float g = ToFloat(dy[i]) * weight[i];
    sum += g;
    dot += g * (ToFloat(x[i]) - mean);
  }
  const float shift = sum / static_cast<float>(n), pull = dot * r * r / static_cast<float>(n);
  float *dweight = sums.weight, *dbias = sums.bias;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float centred = ToFloat(x[i]) - mean, d = ToFloat(dy[i]);
    dweight[i] += d * centred * r;
    dbias[i] += d;
    const float own = r * (d * weight[i] - shift - centred * pull);
    dx[i] = FromFloat<In>(kOther ? own + ToFloat(other[i]) : own);
  }
}

// gelu(x) = x (1 + tanh(u)) / 2 = x sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3)
// (Hendrycks and Gimpel 2016).
constexpr float kGeluScale = 1.59576912F;  // 2 sqrt(2 / pi)
constexpr float kGeluCube = 0.044715F;

template <typename Real>
ESPALIER_INLINE void Gelu(const Real* x, Real* out, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float v = ToFloat(x[i]);
    out[i] = FromFloat<Real>(v * Sigmoid(kGeluScale * (v + kGeluCube * v * v * v)));
  }
}

template <typename Real>
ESPALIER_INLINE void GeluGradient(const Real* x, const Real* dy, Real* dx, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float v = ToFloat(x[i]), s = Sigmoid(kGeluScale * (v + kGeluCube * v * v * v));
    const float slope = kGeluScale * (1.0F + 3.0F * kGeluCube * v * v);
    dx[i] = FromFloat<Real>(ToFloat(dy[i]) * (s + v * slope * s * (1.0F - s)));
  }
}

template <typename Real>
ESPALIER_INLINE void SwiGlu(const Real* gate, const Real* up, Real* out, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = ToFloat(gate[i]);
    out[i] = FromFloat<Real>(g * Sigmoid(g) * ToFloat(up[i]));
  }
}

template <typename Real>
ESPALIER_INLINE void SwiGluGradient(const Real* gate, const Real* up, const Real* dy, Real* dgate,
                                    Real* dup, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = ToFloat(gate[i]), s = Sigmoid(g), d = ToFloat(dy[i]);
    dup[i] = FromFloat<Real>(d * g * s);
    dgate[i] = FromFloat<Real>(d * ToFloat(up[i]) * s * (1.0F + g * (1.0F - s)));
  }
}

template <typename Real>
ESPALIER_INLINE void Rotate(const Real* x, const float* cosine, const float* sine, float sign,
                            Real* out, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = ToFloat(x[i]), b = ToFloat(x[i + half]), s = sign * sine[i];
    out[i] = FromFloat<Real>(a * cosine[i] - b * s);
    out[i + half] = FromFloat<Real>(b * cosine[i] + a * s);
  }
}

template <typename Real>
ESPALIER_INLINE void Add(const Real* x, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] += ToFloat(x[i]);
}

template <typename From, typename To>
ESPALIER_INLINE void Convert(const From* x, To* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = FromFloat<To>(ToFloat(x[i]));
}

template <typename Real>
ESPALIER_INLINE void Scaled(const float* x, float factor, Real* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = FromFloat<Real>(factor * x[i]);
}

}  // namespace

// Several versions of a template cannot be compiled, so each type has functions of its own.
#define ESPALIER_DEFINE_NORM_ROWS(In, Out)                                                        \
  ESPALIER_SIMD_CLONES float RmsNormRow(const In* x, const float* weight, Out* out, int64_t n,    \
                                        float eps) {                                              \
    return RmsNorm(x, weight, out, n, eps);                                                       \
  }                                                                                               \
  ESPALIER_SIMD_CLONES void RmsNormGradientRow(const In* x, const float* weight, const Out* dy,   \
                                               float r, const In* other, In* dx, float* dweight,  \
                                               int64_t n) {                                       \
    if (other == nullptr) {                                                                       \
      RmsNormGradient<false>(x, weight, dy, r, other, dx, dweight, n);                            \
    } else {                                                                                      \
      RmsNormGradient<true>(x, weight, dy, r, other, dx, dweight, n);                             \
    }                                                                                             \
  }                                                                                               \
  ESPALIER_SIMD_CLONES CentredRow LayerNormRow(                                                   \
      const In* x, const float* weight, const float* bias, Out* out, int64_t n, float eps) {      \
    return LayerNorm(x, weight, bias, out, n, eps);                                               \
  }                                                                                               \
  ESPALIER_SIMD_CLONES void LayerNormGradientRow(const In* x, const float* weight, const Out* dy, \
                                                 CentredRow of, const In* other, In* dx,          \
                                                 NormSums sums, int64_t n) {                      \
    if (other == nullptr) {                                                                       \
      LayerNormGradient<false>(x, weight, dy, of, other, dx, sums, n);                            \
    } else {                                                                                      \
      LayerNormGradient<true>(x, weight, dy, of, other, dx, sums, n);                             \
    }                                                                                             \
  }

ESPALIER_DEFINE_NORM_ROWS(float, float)
ESPALIER_DEFINE_NORM_ROWS(Bf16, Bf16)
ESPALIER_DEFINE_NORM_ROWS(float, Bf16)

#define ESPALIER_DEFINE_SOFTMAX_ROWS(Real)                                                         \
  ESPALIER_SIMD_CLONES SoftmaxRow ExpRow(const float* x, Real* to, int64_t n, float scale) {       \
    return Exponentials(x, to, n, scale);                                                          \
  }                                                                                                \
  ESPALIER_SIMD_CLONES void SoftmaxGradientRow(                                                    \
      const float* x, const float* d, const SoftmaxRowGradient& of, Real* p, Real* s, int64_t n) { \
    SoftmaxGradient(x, d, of, p, s, n);                                                            \
  }                                                                                                \
  ESPALIER_SIMD_CLONES float DotRow(const Real* a, const Real* b, int64_t n) {                     \
    return Dot(a, b, n);                                                                           \
  }                                                                                                \
  ESPALIER_SIMD_CLONES void ScaledRow(const float* x, float factor, Real* to, int64_t n) {         \
    Scaled(x, factor, to, n);                                                                      \
  }

ESPALIER_DEFINE_SOFTMAX_ROWS(float)
ESPALIER_DEFINE_SOFTMAX_ROWS(Bf16)

#define ESPALIER_DEFINE_ROWS(Real)                                                                 \
  ESPALIER_SIMD_CLONES void SwiGluRow(const Real* gate, const Real* up, Real* out, int64_t n) {    \
    SwiGlu(gate, up, out, n);                                                                      \
  }                                                                                                \
  ESPALIER_SIMD_CLONES void SwiGluGradientRow(const Real* gate, const Real* up, const Real* dy,    \
                                              Real* dgate, Real* dup, int64_t n) {                 \
    SwiGluGradient(gate, up, dy, dgate, dup, n);                                                   \
  }                                                                                                \
  ESPALIER_SIMD_CLONES void GeluRow(const Real* x, Real* out, int64_t n) { Gelu(x, out, n); }      \
  ESPALIER_SIMD_CLONES void GeluGradientRow(const Real* x, const Real* dy, Real* dx, int64_t n) {  \
    GeluGradient(x, dy, dx, n);                                                                    \
  }                                                                                                \
  ESPALIER_SIMD_CLONES void RopeRow(const Real* x, const float* cosine, const float* sine,         \
                                    float sign, Real* out, int64_t half) {                         \
    Rotate(x, cosine, sine, sign, out, half);                                                      \
  }                                                                                                \
  ESPALIER_SIMD_CLONES void AddRow(const Real* x, float* to, int64_t n) { Add(x, to, n); }         \
  ESPALIER_SIMD_CLONES void ToFloatRow(const Real* x, float* to, int64_t n) { Convert(x, to, n); } \
  ESPALIER_SIMD_CLONES void FromFloatRow(const float* x, Real* to, int64_t n) { Convert(x, to, n); }

ESPALIER_DEFINE_ROWS(float)
ESPALIER_DEFINE_ROWS(Bf16)

}  // namespace espalier::cpu
