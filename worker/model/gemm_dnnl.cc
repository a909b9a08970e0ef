#include <dnnl.h>

#include "common/base/check.h"
#include "worker/model/gemm.h"

namespace espalier::cpu {

void Gemm(const GemmShape& shape, const MatrixView& a, const MatrixView& b, float beta, float* c,
          int64_t c_stride, float alpha) {
  if (shape.m == 0 || shape.n == 0) return;
  const dnnl_status_t status =
      dnnl_sgemm(static_cast<char>(a.op), static_cast<char>(b.op), shape.m, shape.n, shape.k, alpha,
                 a.data, a.stride, b.data, b.stride, beta, c, c_stride);
  ESPALIER_CHECK(status == dnnl_success, "oneDNN refused a matrix product");
}

}  // namespace espalier::cpu
