// ESPALIER_SIMD_CLONES: compiles a function for several instruction sets and picks the best when
// the program starts (x86 with GCC); elsewhere the baseline is already vectorised. Used by
// worker/collective, worker/kernels, worker/ops and worker/sync/exact_sums.cc. Any thread.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ESPALIER_SIMD_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ESPALIER_SIMD_CLONES
#endif
