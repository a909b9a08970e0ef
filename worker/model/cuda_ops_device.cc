#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "worker/model/cuda_ops.h"

namespace espalier::cuda {
namespace {

using torch::Tensor;

Type TypeOf(const Tensor& x) {
  return x.scalar_type() == torch::kBFloat16 ? Type::kBf16
         : x.scalar_type() == torch::kHalf   ? Type::kHalf
                                             : Type::kFloat;
}

RowShape RowsOf(const Tensor& x) { return {x.numel() / x.size(-1), x.size(-1)}; }

Stream Current() { return c10::cuda::getCurrentCUDAStream().stream(); }

const float* Floats(const Tensor& x) { return x.const_data_ptr<float>(); }

}  // namespace

bool Available() { return true; }

bool Apply(const Tensor& x) {
  const auto type = x.scalar_type();
  return x.is_cuda() && x.dim() > 0 && x.size(-1) % 4 == 0 && x.size(-1) <= kMostNormColumns &&
         (type == torch::kFloat || type == torch::kBFloat16 || type == torch::kHalf);
}

void RmsNorm(const Tensor& x, const Tensor& weight, double eps, const Tensor& y,
             const Tensor& inverse) {
  RmsNorm(TypeOf(x), RowsOf(x), x.data_ptr(), weight.data_ptr(), static_cast<float>(eps),
          y.data_ptr(), inverse.data_ptr<float>(), Current());
}

Tensor RmsNormBackward(const Tensor& x, const Tensor& weight, const Tensor& inverse,
                       const Tensor& dy, const Tensor& dx) {
  const Tensor partial = torch::empty({kNormBlocks, x.size(-1)}, inverse.options());
  RmsNormBackward(TypeOf(x), RowsOf(x), x.data_ptr(), weight.data_ptr(), Floats(inverse),
                  dy.data_ptr(), dx.data_ptr(), partial.data_ptr<float>(), Current());
  return partial.sum(0);
}

void SwiGlu(const Tensor& gate, const Tensor& up, const Tensor& y) {
  SwiGlu(TypeOf(gate), gate.numel(), gate.data_ptr(), up.data_ptr(), y.data_ptr(), Current());
}

void SwiGluBackward(const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& dgate) {
  SwiGluBackward(TypeOf(gate), gate.numel(), gate.data_ptr(), up.data_ptr(), dy.data_ptr(),
                 dgate.data_ptr(), Current());
}

void Rope(const Tensor& x, const Tensor& cosine, const Tensor& sine, float sign, const Tensor& y) {
  const RopeShape shape{
      .rows = x.size(0) * x.size(1), .time = x.size(1), .heads = x.size(2), .half = x.size(3) / 2};
  Rope(TypeOf(x), shape, x.data_ptr(), Floats(cosine), Floats(sine), sign, y.data_ptr(), Current());
}

void CrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& losses) {
  CrossEntropy(TypeOf(logits), RowsOf(logits), logits.data_ptr(), targets.const_data_ptr<int64_t>(),
               losses.data_ptr<float>(), Current());
}

void AdamW(const AdamWStep& step, const Tensor& value, const Tensor& gradient, const Tensor& first,
           const Tensor& second, const Tensor& copy) {
  const bool narrow = copy.defined();
  AdamW(narrow ? TypeOf(copy) : Type::kFloat, value.numel(), step, value.data_ptr<float>(),
        gradient.data_ptr<float>(), first.data_ptr<float>(), second.data_ptr<float>(),
        narrow ? copy.data_ptr() : nullptr, Current());
}

void Synchronize() { c10::cuda::device_synchronize(); }

}  // namespace espalier::cuda
