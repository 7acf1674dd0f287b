// The kernels: send (with the wait in its tail where the caller wants both), mark, wait, open, output.
#pragma once
#include "ulysses_rows.h"
#include "ulysses_words.cuh"

#define UL_ROUND 4  // units that a thread has under way at once

namespace ulysses {

// A call with its pieces bound to addresses: what a send kernel gets.
template <int kPieces>
struct Sending {
  UlCall call;
  UlPiece piece[kPieces];
};

// The units of a piece that one thread moves: from the first, all blocks side by side.
struct Share {
  uint32_t first, next;

  __device__ __forceinline__ Share(uint32_t block, uint32_t blocks)
      : first(block * UL_THREADS + threadIdx.x), next(blocks * UL_THREADS) {}
};

// Move this thread's share of a piece. All loads of a round are in flight before its first store; `may_store` is asked between
// them, so that what the answer takes overlaps with the first loads.
template <typename Unit, typename Gate>
__device__ __forceinline__ void copy_piece(const UlPiece& piece, const Share& share, Gate& may_store) {
  for (uint32_t unit = share.first; unit < piece.units; unit += UL_ROUND * share.next) {
    Unit value[UL_ROUND];
    uint64_t target[UL_ROUND];
#pragma unroll
    for (int i = 0; i < UL_ROUND; ++i) {
      if (unit + i * share.next < piece.units) {
        const UlPlace place = ul_place(&piece, unit + i * share.next, sizeof(Unit));
        value[i] = load_once(reinterpret_cast<const Unit*>(place.source));
        target[i] = place.target;
      }
    }
    if (!may_store()) return;
#pragma unroll
    for (int i = 0; i < UL_ROUND; ++i)
      if (unit + i * share.next < piece.units) *reinterpret_cast<Unit*>(target[i]) = value[i];
  }
}

__device__ __forceinline__ Group group_of(const UlCall& call) {
  return {call.arena, call.host_words, call.timeout_ns, call.rank, call.ranks};
}

// The opening barrier, as one thread takes it. Its first threads of block 0 tell the peers.
__device__ __noinline__ bool open_slot(const UlCall& call, uint32_t use) {
  const Group group = group_of(call);
  if (blockIdx.x == 0 && threadIdx.x < call.ranks && threadIdx.x != call.rank)
    store_release(&group.region_of(threadIdx.x, call.region)->begun[call.rank], use);
  return await_begun(group, group.region_of(call.rank, call.region), use);
}

// Whether a remote block may store: the group is sound and the slot free. Free of charge after the first answer. Every thread
// of a block asks at least once, since the first ones also begin the opening barrier.
struct SlotGate {
  const UlCall& call;
  uint64_t fault;
  uint32_t use, last;
  bool asked, open;

  __device__ __forceinline__ bool operator()() {
    if (!asked) {
      asked = true;
      open = fault == 0 && (is_proven(use, last, call.expiry) || open_slot(call, use));
    }
    return open;
  }
};

// The own slot is free whenever its rank gets here.
struct OwnGate {
  uint64_t fault;
  __device__ __forceinline__ bool operator()() const { return fault == 0; }
};

// Every thread of a block looks at its share of the arrival words, of the use that the region's newest send began. False for
// threads that saw the group break.
__device__ __forceinline__ bool await_all(const Group& group, const UlWaitSite& site, uint32_t use, uint32_t copied) {
  const UlRegion* own = group.region_of(group.rank, site.region);
  for (uint32_t source = 0; source < group.ranks; ++source) {
    if (source == group.rank) continue;
    for (uint32_t word = threadIdx.x; word < site.words; word += blockDim.x)
      if (!await_arrival(group, &own->arrival[use & 1][source][word], arrival_word(use, site.signature), source)) return false;
  }
  if (!site.copies) return true;
  const uint32_t source = threadIdx.x;
  if (source >= group.ranks || source == group.rank) return true;
  return await_arrival(group, &own->copied[copied & 1][source], arrival_word(copied, site.signature), source);
}

// The wait in a send kernel's tail; apart from it, so that it takes none of its registers.
__device__ __noinline__ void await_call(const UlCall& call, uint32_t use, uint32_t copied) {
  const UlWaitSite site{call.region, call.signature, call.remote_blocks, call.copies, 0};
  await_all(group_of(call), site, use, copied);
}

// A block's arrival word at every peer; all its threads have stored, and met, before.
__device__ __forceinline__ void announce(const UlCall& call, const Group& group, uint32_t use) {
  if (threadIdx.x >= call.ranks - 1) return;
  const uint32_t peer = (call.rank + 1 + threadIdx.x) % call.ranks;
  fence_system();
  store_relaxed(&group.region_of(peer, call.region)->arrival[use & 1][call.rank][blockIdx.x],
                arrival_word(use, call.signature));
}

// Keep the states of all block numbers in step; all threads of the block have read its own before.
__device__ __forceinline__ void count_use(UlRegion* own, uint32_t slot, uint32_t use, uint32_t copied) {
  for (uint32_t block = blockIdx.x + threadIdx.x * gridDim.x; block < UL_MAX_BLOCKS; block += UL_THREADS * gridDim.x) {
    own->state[block].uses = use;
    own->state[block].copied = copied;
    own->state[block].last[slot] = use;
  }
}

// Write the tensors' pieces into all ranks' windows and announce it.
//
// The first `remote_blocks` blocks serve the peers, each starting at another peer so that at any time all are served alike;
// the others copy the own share, on multiprocessors of their own, since stores to peers back up in the pipes of theirs.
// Each remote block announces its own end: no block waits for another, and no counter is shared.
template <typename Unit, int kPieces>
__global__ void __launch_bounds__(UL_THREADS) send_kernel(const __grid_constant__ Sending<kPieces> sending) {
  const UlCall& call = sending.call;
  const Group group = group_of(call);
  UlRegion* own = group.region_of(call.rank, call.region);
  const uint64_t fault = fault_of(group);  // these loads are not awaited before the first ones of data are under way
  const uint32_t use = own->state[blockIdx.x].uses + 1;
  const uint32_t copied = own->state[blockIdx.x].copied + call.copies;
  const uint32_t last = own->state[blockIdx.x].last[call.slot];
  const uint32_t peers = call.ranks - 1;

  if (blockIdx.x < call.remote_blocks) {
    SlotGate gate{call, fault, use, last, false, false};
    for (uint32_t step = 0; step < peers; ++step) {
      const uint32_t at = (step + blockIdx.x) % peers * call.tensors;
      for (uint32_t tensor = 0; tensor < call.tensors; ++tensor) {
        const UlPiece& piece = sending.piece[at + tensor];
        copy_piece<Unit>(piece, Share(blockIdx.x, call.remote_blocks), gate);
      }
    }
    if (__syncthreads_or(!gate())) return;
    announce(call, group, use);
  } else {
    OwnGate gate{fault};
    for (uint32_t tensor = 0; tensor < call.tensors; ++tensor) {
      const UlPiece& piece = sending.piece[peers * call.tensors + tensor];
      copy_piece<Unit>(piece, Share(blockIdx.x - call.remote_blocks, call.local_blocks), gate);
    }
    if (__syncthreads_or(!gate())) return;  // and all threads have read the state that is written below
  }

  count_use(own, call.slot, use, copied);
  if (call.waits && blockIdx.x == 0) await_call(call, use, copied);
}

// Announce the copy engine's share: its copies are complete (stream order). It counts by itself, since the send kernel of the
// same use may still be under way, or not have begun.
__global__ void __launch_bounds__(32) mark_kernel(const __grid_constant__ UlCall call) {
  const Group group = group_of(call);
  UlRegion* own = group.region_of(call.rank, call.region);
  const uint32_t copied = (uint32_t)own->marked + 1;
  __syncthreads();
  if (threadIdx.x == call.rank) own->marked = copied;
  if (threadIdx.x >= call.ranks || threadIdx.x == call.rank || fault_of(group) != 0) return;
  fence_system();
  store_relaxed(&group.region_of(threadIdx.x, call.region)->copied[copied & 1][call.rank], arrival_word(copied, call.signature));
}

// Wait for all sites. One block, so that a rank that waits keeps next to nothing of its device from others.
__global__ void __launch_bounds__(UL_THREADS) wait_kernel(const __grid_constant__ UlWait wait) {
  const Group group{wait.arena, wait.host_words, wait.timeout_ns, wait.rank, wait.ranks};
  if (fault_of(group) != 0) return;
  for (uint32_t index = 0; index < wait.sites; ++index) {
    const UlBlockState& newest = group.region_of(group.rank, wait.site[index].region)->state[0];
    if (!await_all(group, wait.site[index], newest.uses, newest.copied)) return;
  }
}

// Before copies by the copy engine: the slot must be free. One block; the send kernel of the same use follows.
__global__ void __launch_bounds__(32) open_kernel(const __grid_constant__ UlCall call) {
  const Group group = group_of(call);
  const UlRegion* own = group.region_of(call.rank, call.region);
  const uint32_t use = own->state[0].uses + 1;
  if (fault_of(group) != 0 || is_proven(use, own->state[0].last[call.slot], call.expiry)) return;
  if (threadIdx.x < call.ranks && threadIdx.x != call.rank)
    store_release(&group.region_of(threadIdx.x, call.region)->begun[call.rank], use);
  if (threadIdx.x == 0) await_begun(group, own, use);
}

// Results from the slot into tensors of the caller, once everything arrived.
__global__ void __launch_bounds__(UL_THREADS) output_kernel(const __grid_constant__ UlOutput output) {
  const uint32_t thread = blockIdx.x * UL_THREADS + threadIdx.x, threads = gridDim.x * UL_THREADS;
  for (uint32_t tensor = 0; tensor < output.tensors; ++tensor) {
    const uint4* from = reinterpret_cast<const uint4*>(output.source[tensor]);
    uint4* to = reinterpret_cast<uint4*>(output.target[tensor]);
    const uint64_t units = output.bytes[tensor] / sizeof(uint4);
    for (uint64_t unit = thread; unit < units; unit += UL_ROUND * (uint64_t)threads) {
      uint4 value[UL_ROUND];
#pragma unroll
      for (int i = 0; i < UL_ROUND; ++i)
        if (unit + i * (uint64_t)threads < units) value[i] = load_once(from + unit + i * (uint64_t)threads);
#pragma unroll
      for (int i = 0; i < UL_ROUND; ++i)
        if (unit + i * (uint64_t)threads < units) to[unit + i * (uint64_t)threads] = value[i];
    }
    const uint64_t rest = units * sizeof(uint4) + thread;
    if (rest < output.bytes[tensor])
      reinterpret_cast<uint8_t*>(output.target[tensor])[rest] = reinterpret_cast<const uint8_t*>(output.source[tensor])[rest];
  }
}

}  // namespace ulysses
