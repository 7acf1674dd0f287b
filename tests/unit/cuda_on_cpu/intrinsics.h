// The machine instructions of csrc/ulysses_intrinsics.cuh as C++ atomics. A wait gives the core to others.
#pragma once
#include <chrono>

#include "cuda_runtime.h"

inline unsigned long long atomicCAS(unsigned long long* word, unsigned long long expected, unsigned long long wanted) {
  __atomic_compare_exchange_n(word, &expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}

namespace ulysses {

inline uint64_t load_acquire(const uint64_t* word) {
  std::this_thread::yield();
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline uint64_t load_relaxed(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
inline void store_relaxed(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
inline void store_release(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
inline void fence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline uint64_t now_ns() {
  return (uint64_t)std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
#ifdef CPU_DAWDLE  // the last thread of each block comes long after the others
inline void dawdle() {
  if (threadIdx.x + 1 == blockDim.x) std::this_thread::sleep_for(std::chrono::microseconds(200));
}
#else
inline void dawdle() {}
#endif
template <typename Unit>
inline Unit load_once(const Unit* from) {
  dawdle();
  return *from;
}

}  // namespace ulysses

#ifdef CPU_DROP_RELEASE  // and nobody waits for it
#undef __syncthreads_or
#define __syncthreads_or(vote) (vote)
#endif
