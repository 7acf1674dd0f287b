// csrc/fused_intrinsics.cuh for a CPU: numbers of 16 bits by hand, and lanes of a warp that meet to tell each other values.
#pragma once
#include <math.h>

#include <map>
#include <utility>

#include "cuda_runtime.h"

#define UL_LANES (UL_THREADS / 2)

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
template <typename T>
inline T __ldg(const T* from) {
  return *from;
}
inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
inline float __uint_as_float(uint32_t bits) {
  float value;
  return memcpy(&value, &bits, sizeof(value)), value;
}
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  return memcpy(&bits, &value, sizeof(bits)), bits;
}

namespace cpu {

// Where the lanes of one warp of one block meet.
struct Room {
  Barrier barrier{UL_LANES};
  float value[UL_LANES] = {};
};

inline Room& room() {
  static std::mutex mutex;
  static std::map<std::pair<Barrier*, unsigned>, Room> rooms;  // blocks that are gone leave theirs to the next ones
  std::lock_guard<std::mutex> lock(mutex);
  return rooms[{barrier, threadIdx.x / UL_LANES}];
}

}  // namespace cpu

namespace ulysses {

inline float from_neighbour(float value, uint32_t distance) {
  cpu::Room& room = cpu::room();
  room.value[threadIdx.x % UL_LANES] = value;
  room.barrier.sync(false);
  const float told = room.value[threadIdx.x % UL_LANES ^ distance];
  room.barrier.sync(false);
  return told;
}

inline bool all_lanes(bool vote) { return !cpu::room().barrier.sync(!vote); }

inline float reciprocal_root(float value) { return 1.0f / sqrtf(value); }

struct BFloat16 {
  static float2 unpack(uint32_t bits) { return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)}; }
  static uint32_t rounded(float value) {
    const uint32_t bits = __float_as_uint(value);
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  }
  static uint32_t pack(float low, float high) { return rounded(low) | rounded(high) << 16; }
};

struct Float16 {
  static float2 unpack(uint32_t bits) {
    _Float16 pair[2];
    memcpy(pair, &bits, sizeof(bits));
    return {(float)pair[0], (float)pair[1]};
  }
  static uint32_t pack(float low, float high) {
    const _Float16 pair[2] = {(_Float16)low, (_Float16)high};
    uint32_t bits;
    return memcpy(&bits, pair, sizeof(bits)), bits;
  }
};

}  // namespace ulysses
