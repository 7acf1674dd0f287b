// The exchange's instructions for writers that dawdle: the last warp of each block rests before it loads, so that its stores come
// long after the other warps'. With UL_DROP_RELEASE nothing waits for them, and copies go another way: the announcement no longer
// proves that the data is there. A test must see that, or it could not see a real defect of the kind.
#pragma once
#include "ulysses_intrinsics.cuh"

namespace ulysses {

__device__ __forceinline__ void dawdle() {
  if (threadIdx.x / 32 == UL_THREADS / 32 - 1) __nanosleep(20000);
}

__device__ __forceinline__ void keep_no_order() {}

}  // namespace ulysses

#define load_once(address) (::ulysses::dawdle(), load_once(address))

#ifdef UL_DROP_RELEASE
#define __syncthreads_or(vote) (vote)
#define fence_system keep_no_order
inline cudaStream_t ul_elsewhere() {
  static cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    return made;
  }();
  return stream;
}
#define cudaMemcpyAsync(to, from, bytes, kind, stream) cudaMemcpyAsync(to, from, bytes, kind, ul_elsewhere())
#define cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, stream) \
  cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, ul_elsewhere())
#endif
