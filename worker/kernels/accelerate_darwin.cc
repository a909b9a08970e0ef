// gemm.h by Accelerate, without tensors in between: blocks of attention are small, and a tensor for
// each side costs as much as their product.
#define ACCELERATE_NEW_LAPACK  // the interface that is not deprecated, with 32-bit sizes
#include <Accelerate/Accelerate.h>
#include <AvailabilityMacros.h>
#include <omp.h>

#include "worker/kernels/blas_call.h"
#include "worker/kernels/gemm.h"

namespace espalier::cpu {
namespace {

// Within a parallel region every thread has its own products. Before macOS 15 Accelerate decides
// alone, which leaves small products on their thread.
void UseThreads(bool many) {
#if defined(__MAC_OS_X_VERSION_MAX_ALLOWED) && __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
  if (__builtin_available(macOS 15.0, *)) {
    BLASSetThreading(many ? BLAS_THREADING_MULTI_THREADED : BLAS_THREADING_SINGLE_THREADED);
  }
#endif
  (void)many;
}

CBLAS_TRANSPOSE TransposeOf(const Matrix<float>& matrix) {
  return matrix.op == Op::kTranspose ? CblasTrans : CblasNoTrans;
}

}  // namespace

void Gemm(const GemmShape& shape, const Matrix<float>& a, const Matrix<float>& b, float beta,
          float* c, int64_t c_stride) {
  if (shape.m == 0 || shape.n == 0) return;
  const BlasCall call = MakeBlasCall(shape, a, b, c_stride);
  UseThreads(omp_in_parallel() == 0);
  cblas_sgemm(CblasRowMajor, TransposeOf(a), TransposeOf(b), call.m, call.n, call.k, 1.0f, a.data,
              call.lda, b.data, call.ldb, beta, c, call.ldc);
}

bool MultipliesBf16() { return false; }

bool FastGemm(const GemmShape&, const Matrix<Bf16>&, const Matrix<Bf16>&, float, float*, int64_t) {
  return false;
}

bool FastGemm(const GemmShape&, const Matrix<Bf16>&, const Matrix<Bf16>&, float, Bf16*, int64_t) {
  return false;
}

}  // namespace espalier::cpu
