// The kernels: send (with the wait in its tail where the caller wants both), finish, open.
#pragma once
#include "ulysses_rows.h"
#include "ulysses_words.cuh"

namespace ulysses {

// Copy a piece: thread `first` of `threads`. All loads of a round are in flight before its first store; `may_store` is asked
// between them, so that an opening barrier overlaps with the first loads.
template <typename Unit, int kRound, typename Gate>
__device__ __forceinline__ void copy_piece(const UlPiece& piece, uint32_t first, uint32_t threads, Gate& may_store) {
  for (uint32_t unit = first; unit < piece.units; unit += kRound * threads) {
    Unit value[kRound];
    uint64_t target[kRound];
#pragma unroll
    for (int i = 0; i < kRound; ++i) {
      if (unit + i * threads < piece.units) {
        const UlPlace place = ul_place(&piece, unit + i * threads, sizeof(Unit));
        value[i] = load_once(reinterpret_cast<const Unit*>(place.source));
        target[i] = place.target;
      }
    }
    if (!may_store()) return;
#pragma unroll
    for (int i = 0; i < kRound; ++i)
      if (unit + i * threads < piece.units) *reinterpret_cast<Unit*>(target[i]) = value[i];
  }
}

// Asked by each thread before its stores: free of charge once the slot is known to be free.
struct SlotGate {
  const Group& group;
  const UlRegion* own;
  uint32_t use;
  bool open, broken;

  __device__ __forceinline__ bool operator()() {
    if (!open) {
      open = await_begun(group, own, use);
      broken = !open;
    }
    return open;
  }
};

struct OpenGate {
  __device__ __forceinline__ bool operator()() const { return true; }
};

// Every thread of a block looks at its share of the arrival words. False for threads that saw the group break.
__device__ __forceinline__ bool await_all(const Group& group, uint64_t region, uint32_t use, uint32_t signature, uint32_t words) {
  const UlRegion* own = group.region_of(group.rank, region);
  const uint64_t expected = arrival_word(use, signature);
  for (uint32_t source = 0; source < group.ranks; ++source) {
    if (source == group.rank) continue;
    for (uint32_t word = threadIdx.x; word < words; word += blockDim.x)
      if (!await_arrival(group, &own->arrival[use & 1][source][word], expected, source)) return false;
  }
  return true;
}

// Write the tensors' pieces into all ranks' windows and announce it.
//
// The first `remote_blocks` blocks serve the peers, each starting at another peer so that at any time all are served alike;
// the others copy the own share, on multiprocessors of their own, since stores to peers back up in the pipes of theirs.
// Each remote block announces its own end: no block waits for another, and no counter is shared.
template <typename Unit, int kRound>
__global__ void __launch_bounds__(UL_THREADS, 2) send_kernel(const __grid_constant__ UlCall call) {
  const Group group{call.arena, call.host_words, call.timeout_ns, call.rank, call.ranks};
  UlRegion* own = group.region_of(call.rank, call.region);
  const UlBlockState state = own->state[blockIdx.x];
  const bool broken = is_broken(group);
  const uint32_t use = state.uses + 1;
  const uint32_t peers = call.ranks - 1;
  if (broken) return;

  if (blockIdx.x < call.remote_blocks) {
    SlotGate gate{group, own, use, is_proven(state, call.slot, call.expiry), false};
    if (!gate.open && blockIdx.x == 0 && threadIdx.x < call.ranks && threadIdx.x != call.rank)
      store_release(&group.region_of(threadIdx.x, call.region)->begun[call.rank], use);
    const uint32_t threads = call.remote_blocks * UL_THREADS;
    const uint32_t first = blockIdx.x * UL_THREADS + threadIdx.x;
    for (uint32_t step = 0; step < peers; ++step) {
      const uint32_t at = (step + blockIdx.x) % peers * call.tensors;
      for (uint32_t tensor = 0; tensor < call.tensors; ++tensor)
        copy_piece<Unit, kRound>(call.piece[at + tensor], first, threads, gate);
    }
    // A thread without a unit has not asked the gate, and needs not: it has stored nothing.
    if (__syncthreads_or(gate.broken)) return;
    if (threadIdx.x < peers) {
      const uint32_t peer = (call.rank + 1 + threadIdx.x) % call.ranks;
      fence_system();
      store_relaxed(&group.region_of(peer, call.region)->arrival[use & 1][call.rank][blockIdx.x],
                    arrival_word(use, call.signature));
    }
  } else {
    const uint32_t first = (blockIdx.x - call.remote_blocks) * UL_THREADS + threadIdx.x;
    OpenGate gate;
    for (uint32_t tensor = 0; tensor < call.tensors; ++tensor)
      copy_piece<Unit, kRound>(call.piece[peers * call.tensors + tensor], first, call.local_blocks * UL_THREADS, gate);
    __syncthreads();  // all threads have read the state that is written below
  }

  UlBlockState next = state;
  next.uses = use;
  next.last[call.slot] = use;
  for (uint32_t block = blockIdx.x + threadIdx.x * gridDim.x; block < UL_MAX_BLOCKS; block += UL_THREADS * gridDim.x)
    own->state[block] = next;
  if (call.waits && blockIdx.x == 0) await_all(group, call.region, use, call.signature, call.expected_words);
}

// The use that the last send of a region began; for kernels ordered after it.
__device__ __forceinline__ uint32_t current_use(const Group& group, uint64_t region) {
  return group.region_of(group.rank, region)->state[0].uses;
}

// All blocks copy contiguous bytes, both sides aligned to a unit. Ordinary loads: peers wrote the source during this grid.
__device__ __forceinline__ void copy_out(uint8_t* target, const uint8_t* source, uint64_t bytes) {
  const uint4* from = reinterpret_cast<const uint4*>(source);
  uint4* to = reinterpret_cast<uint4*>(target);
  const uint64_t units = bytes / sizeof(uint4);
  const uint64_t stride = (uint64_t)gridDim.x * UL_THREADS;
  for (uint64_t unit = (uint64_t)blockIdx.x * UL_THREADS + threadIdx.x; unit < units; unit += 4 * stride) {
    uint4 value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (unit + i * stride < units) value[i] = from[unit + i * stride];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (unit + i * stride < units) to[unit + i * stride] = value[i];
  }
  const uint64_t rest = units * sizeof(uint4) + threadIdx.x;
  if (blockIdx.x == 0 && rest < bytes) target[rest] = source[rest];
}

// Announce the copy engine's share (its copies are complete: stream order), wait for all sites, copy out if asked.
// Every block waits by itself, so blocks need not meet.
__global__ void __launch_bounds__(UL_THREADS) finish_kernel(const __grid_constant__ UlWait wait) {
  const Group group{wait.arena, wait.host_words, wait.timeout_ns, wait.rank, wait.ranks};
  if (is_broken(group)) return;
  if (wait.announces && blockIdx.x == 0 && threadIdx.x < wait.ranks && threadIdx.x != wait.rank) {
    const UlWaitSite site = wait.site[0];
    const uint32_t use = current_use(group, site.region);
    fence_system();
    store_relaxed(&group.region_of(threadIdx.x, site.region)->arrival[use & 1][wait.rank][site.expected_words - 1],
                  arrival_word(use, site.signature));
  }
  if (!wait.awaits) return;
  bool complete = true;
  for (uint32_t index = 0; index < wait.sites && complete; ++index) {
    const UlWaitSite site = wait.site[index];
    complete = await_all(group, site.region, current_use(group, site.region), site.signature, site.expected_words);
  }
  if (wait.copies == 0 || __syncthreads_or(!complete)) return;
  for (uint32_t index = 0; index < wait.copies; ++index)
    copy_out(reinterpret_cast<uint8_t*>(wait.copy_target[index]), reinterpret_cast<const uint8_t*>(wait.copy_source[index]),
             wait.copy_bytes[index]);
}

// Before copies by the copy engine: the slot must be free. One block; the send kernel of the same use follows.
__global__ void __launch_bounds__(32) open_kernel(const __grid_constant__ UlCall call) {
  const Group group{call.arena, call.host_words, call.timeout_ns, call.rank, call.ranks};
  const UlRegion* own = group.region_of(call.rank, call.region);
  const UlBlockState state = own->state[0];
  if (is_broken(group) || is_proven(state, call.slot, call.expiry)) return;
  const uint32_t use = state.uses + 1;
  if (threadIdx.x < call.ranks && threadIdx.x != call.rank)
    store_release(&group.region_of(threadIdx.x, call.region)->begun[call.rank], use);
  if (threadIdx.x == 0) await_begun(group, own, use);
}

}  // namespace ulysses
