// Adam-atan2 on one element, as adamw_math.h has AdamW, and by the same rules: the same inputs give
// the same bits on every processor. Used by worker/kernels: adamw_kernel.cc, and
// worker/kernels/cuda. Any thread.
#pragma once

#include <cmath>

#include "worker/kernels/adamw_math.h"

namespace espalier {

// The angle of (x, y) with x, y >= 0, in [0, pi/2], within 2e-6; 0 of (0, 0). By sums and products,
// which are the same bits everywhere, as no library's is.
ESPALIER_HOST_DEVICE inline float AngleOf(float y, float x) {
  const float low = y < x ? y : x, high = y < x ? x : y;
  const float t = low / (high > 0 ? high : 1.0F), s = t * t;
  float angle = -0.01172120F;
  angle = angle * s + 0.05265332F;
  angle = angle * s - 0.11643287F;
  angle = angle * s + 0.19354346F;
  angle = angle * s - 0.33262347F;
  angle = (angle * s + 0.99997726F) * t;
  return y < x ? angle : (high > 0 ? 1.57079637F - angle : 0.0F);
}

// The same with an angle in place of a quotient, which no scale of the gradient changes and which
// needs no eps (Everett et al. 2024, section 4.3): as the package adam-atan2 has it, a step of
// step_size, learning rate / (1 - beta1^t) as AdamW's, times the angle of the first moment as it is
// and the corrected root of the second. first_factor is 1.
ESPALIER_HOST_DEVICE inline void AdamAtan2Element(const AdamWStep& f, float gradient, float& m,
                                                  float& v, float& p) {
  const float g = gradient * f.gradient_scale;
  m = f.beta1 * m + (1 - f.beta1) * g;
  v = f.beta2 * v + (1 - f.beta2) * (g * g);
  const float mean = m * f.first_factor;
  const float angle = AngleOf(fabsf(mean), sqrtf(v) * f.second_root);
  p = p * f.keep - f.step_size * (mean < 0 ? -angle : angle);
}

// Whichever of the two the step is of.
ESPALIER_HOST_DEVICE inline void AdamElement(const AdamWStep& f, float gradient, float& m, float& v,
                                             float& p) {
  f.first_factor > 0 ? AdamAtan2Element(f, gradient, m, v, p) : AdamWElement(f, gradient, m, v, p);
}

}  // namespace espalier
