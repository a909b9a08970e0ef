// What we call of Accelerate, see CoreFoundation/CoreFoundation.h: the interface of
// ACCELERATE_NEW_LAPACK, whose symbols have a name of their own.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

typedef int __LAPACK_int;
typedef enum CBLAS_ORDER { CblasRowMajor = 101, CblasColMajor = 102 } CBLAS_ORDER;
typedef enum CBLAS_TRANSPOSE {
  CblasNoTrans = 111,
  CblasTrans = 112,
  CblasConjTrans = 113
} CBLAS_TRANSPOSE;

void cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE transpose_a,
                 enum CBLAS_TRANSPOSE transpose_b, __LAPACK_int m, __LAPACK_int n, __LAPACK_int k,
                 float alpha, const float* a, __LAPACK_int lda, const float* b, __LAPACK_int ldb,
                 float beta, float* c, __LAPACK_int ldc) __asm__("_cblas_sgemm$NEWLAPACK");

#ifdef __cplusplus
}
#endif
