// Numbers of 16 bits, and what lanes of a warp tell each other.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define UL_LANES 32

namespace ulysses {

__device__ __forceinline__ float from_neighbour(float value, uint32_t distance) {
  return __shfl_xor_sync(0xffffffffu, value, distance);
}

__device__ __forceinline__ bool all_lanes(bool vote) { return __all_sync(0xffffffffu, vote); }

__device__ __forceinline__ float reciprocal_root(float value) { return rsqrtf(value); }

// Two numbers in 32 bits, the first in the lower half.
struct BFloat16 {
  static __device__ __forceinline__ float2 unpack(uint32_t bits) {
    return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
  }
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

struct Float16 {
  static __device__ __forceinline__ float2 unpack(uint32_t bits) {
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  }
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

}  // namespace ulysses
