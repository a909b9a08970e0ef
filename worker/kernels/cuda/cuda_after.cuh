// Kernels that begin before the one before them has ended: a launch costs no gap then, and what
// does not depend on that one is done in the meantime. Used by cuda_one_row_kernels.cu and
// cuda_kept_attention_kernels.cu.
#pragma once

#include <cuda_runtime.h>

#include "worker/kernels/cuda/cuda_kernels.h"

namespace espalier::cuda {

// Lets the next kernel begin as soon as all blocks of this one have.
inline __device__ void LetNextBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until all kernels before this one are done and what they wrote can be read. Each kernel of
// LaunchAfter calls it once, in every thread, before it reads what others write and before it
// writes anything.
inline __device__ void AfterKernelsBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct Grid {
  dim3 blocks, threads;
  unsigned shared_bytes = 0;
};

template <typename... Parameters, typename... Arguments>
void LaunchAfter(void (*kernel)(Parameters...), const Grid& grid, Stream stream,
                 Arguments... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = 1;
  (void)cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);  // asked for by the caller
}

}  // namespace espalier::cuda
