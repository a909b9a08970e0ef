#include <cstdlib>

#include "common/base/check.h"
#include "worker/ops/cuda_ops.h"

namespace espalier::cuda {
namespace {

[[noreturn]] void Missing() {
  ESPALIER_CHECK(false, "this build has no CUDA kernels; ask Apply first");
  std::abort();
}

}  // namespace

using torch::Tensor;

bool Available() { return false; }
bool Apply(const Tensor&) { return false; }
void RmsNorm(const Tensor&, const Tensor&, double, const Tensor&, const Tensor&) { Missing(); }
bool RmsNormAdd(const Tensor&, const Tensor&, double, const Tensor&, const Tensor&, const Tensor&) {
  return false;
}
Tensor RmsNormBackward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                       const Tensor&) {
  Missing();
}
void SwiGlu(const Tensor&, const Tensor&, const Tensor&) { Missing(); }
void SwiGluBackward(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { Missing(); }
void Rope(const Tensor&, const Tensor&, const Tensor&, float, const Tensor&) { Missing(); }
void Drop(const Tensor&, const Tensor&, const Tensor&, uint64_t, uint32_t, bool, const Tensor&) {
  Missing();
}
void CrossEntropy(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  Missing();
}
void AdamW(const AdamWStep&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
           const Tensor&) {
  Missing();
}
void AdamW8(const AdamWStep&, const Tensor&, const Tensor&, const Moments8&, const RandomPlace&,
            const Tensor&) {
  Missing();
}

Tensor DenseProduct(const Tensor&, const Tensor&, bool, const Tensor&, const Tensor&) { Missing(); }
Gated GatedProduct(const Tensor&, const Tensor&, bool) { return {}; }
Tensor OneRowProduct(const OneRowInput&, const Tensor&, const Tensor&) { return {}; }
bool TakesKept(const Tensor&, int64_t) { return false; }
KeptWork MakeKeptWork(const Tensor&, int64_t) { Missing(); }
Tensor KeptAttention(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                     const KeptRows&, const KeptWork&) {
  Missing();
}

Tensor ShortAttention(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                      bool) {
  return {};
}

Tensor DrawIds(const Tensor&, const Tensor&) { Missing(); }

bool CanRecord() { return false; }
std::unique_ptr<Graph> Record(torch::Device, const std::function<void()>&, const Graph*) {
  Missing();
}

void Synchronize() {}

}  // namespace espalier::cuda
