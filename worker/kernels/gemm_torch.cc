#include <stdexcept>

#include "worker/kernels/gemm.h"
#include "worker/tensor/torch.h"

namespace espalier::cpu {
namespace {

torch::Tensor View(const Matrix<float>& matrix, int64_t rows, int64_t columns) {
  float* data = const_cast<float*>(matrix.data);
  if (matrix.op == Op::kTranspose) {
    return torch::from_blob(data, {columns, rows}, {matrix.stride, 1}, torch::kFloat).t();
  }
  return torch::from_blob(data, {rows, columns}, {matrix.stride, 1}, torch::kFloat);
}

}  // namespace

void Gemm(const GemmShape& shape, const Matrix<float>& a, const Matrix<float>& b, float beta,
          float* c, int64_t c_stride) {
  if (shape.m == 0 || shape.n == 0) return;
  if (c_stride < shape.n) throw std::invalid_argument("rows of a product overlap");
  const torch::NoGradGuard no_grad;
  torch::Tensor out = torch::from_blob(c, {shape.m, shape.n}, {c_stride, 1}, torch::kFloat);
  torch::addmm_out(out, out, View(a, shape.m, shape.k), View(b, shape.k, shape.n), beta);
}

bool MultipliesBf16() { return false; }

bool FastGemm(const GemmShape&, const Matrix<Bf16>&, const Matrix<Bf16>&, float, float*, int64_t) {
  return false;
}

bool FastGemm(const GemmShape&, const Matrix<Bf16>&, const Matrix<Bf16>&, float, Bf16*, int64_t) {
  return false;
}

}  // namespace espalier::cpu
