// The words that ranks meet by, and the waits on them.
//
// Memory model, in PTX terms. All words are 8 bytes, aligned, each with one writer (`told` aside, where any writer will do).
//
//   data → arrival      A block's threads store data with weak stores. bar.sync orders them before the block's first warp,
//                       whose fence.acq_rel.sys followed by st.relaxed.sys to the arrival word is a release pattern at
//                       system scope; release is cumulative over bar.sync, so it covers the whole block's stores.
//   arrival → reader    The waiter's ld.acquire.sys that reads the word completes the synchronisation. Readers of the data
//                       come after the waiting grid in stream order (or after a bar.sync in the same block).
//   reader → next write A slot may be written again when its readers are done. They are ordered (stream order) before the
//                       kernel that announces the use by which the lease has expired. A sender that has seen that
//                       announcement (acquire, in an earlier kernel of its stream) writes after it. Where the last `expiry`
//                       announcements do not prove it, both sides take the opening barrier: `begun` is a st.release.sys
//                       by a kernel ordered after the readers, the sender's ld.acquire.sys precedes its stores.
//   word reuse          Arrival words alternate by the parity of the use. Use u + 2 can be announced only after its sender
//                       saw this rank's announcement of u + 1, which follows this rank's wait for u in stream order.
//
// Waits are bounded by %globaltimer and end at once when the group is broken; broken is for good.
#pragma once
#include "ulysses_abi.h"

#ifndef UL_INTRINSICS  // a test runs these kernels on the CPU, with words and fences of its own
#define UL_INTRINSICS "ulysses_intrinsics.cuh"
#endif
#include UL_INTRINSICS

namespace ulysses {

__device__ __forceinline__ uint64_t arrival_word(uint32_t use, uint32_t signature) {
  return ((uint64_t)signature << 32) | use;
}

// What every wait needs to know, whichever kernel it is in.
struct Group {
  const uint64_t* arena;
  uint64_t host_words;
  uint64_t timeout_ns;
  uint32_t rank, ranks;

  __device__ UlArenaWords* words_of(uint32_t peer) const { return reinterpret_cast<UlArenaWords*>(arena[peer]); }
  __device__ UlRegion* region_of(uint32_t peer, uint64_t region) const {
    return reinterpret_cast<UlRegion*>(arena[peer] + region);
  }
  __device__ UlHostWords* host() const { return reinterpret_cast<UlHostWords*>(host_words); }
};

// Break the group for good: the first verdict of this rank stays, peers and the host are told.
__device__ __noinline__ void break_group(const Group& group, uint64_t verdict) {
  UlArenaWords* own = group.words_of(group.rank);
  const auto first = atomicCAS(reinterpret_cast<unsigned long long*>(&own->fault), 0ull, (unsigned long long)verdict);
  if (first != 0) return;
  store_release(&group.host()->fault, verdict);
  for (uint32_t peer = 0; peer < group.ranks; ++peer)
    if (peer != group.rank) store_relaxed(&group.words_of(peer)->told, verdict);
  fence_system();
}

// Not 0: the group is broken.
__device__ __forceinline__ uint64_t fault_of(const Group& group) {
  const UlArenaWords* own = group.words_of(group.rank);
  return load_relaxed(&own->fault) | load_relaxed(&own->told);
}

// One wait's patience. `again` is asked after each look that found nothing; false ends the wait.
struct Patience {
  uint32_t looks = 0;
  uint64_t began_ns = 0;

  __device__ bool again(const Group& group, uint32_t awaited) {
    if (++looks % 64 != 0) return true;
    return ask(group, awaited);
  }

 private:
  __device__ __noinline__ bool ask(const Group& group, uint32_t awaited) {
    const UlArenaWords* own = group.words_of(group.rank);
    if (load_relaxed(&own->fault) != 0) return false;
    const uint64_t told = load_relaxed(&own->told);
    const uint64_t now = now_ns();
    if (began_ns == 0) began_ns = now;
    if (told != 0) {
      break_group(group, told);
    } else if (now - began_ns > group.timeout_ns) {
      break_group(group, (uint64_t)UL_TIMED_OUT << 8 | awaited);
    } else if (looks % 1024 == 0) {
      const uint64_t abort = load_relaxed(&group.host()->abort);  // crosses PCIe: looked at once in about a millisecond
      if (abort == 0) return true;
      break_group(group, abort);
    } else {
      return true;
    }
    return false;
  }
};

// Wait until `source` has announced `use` in one word. False: the group is broken.
__device__ __forceinline__ bool await_arrival(const Group& group, const uint64_t* word, uint64_t expected, uint32_t source) {
  Patience patience;
  for (;;) {
    const uint64_t seen = load_acquire(word);
    if (seen == expected) return true;
    if ((uint32_t)seen == (uint32_t)expected) {
      break_group(group, (uint64_t)UL_DISAGREED << 8 | source);
      return false;
    }
    if (!patience.again(group, source)) return false;
  }
}

// The opening barrier's second half: wait until all peers have begun `use`.
__device__ __noinline__ bool await_begun(const Group& group, const UlRegion* own, uint32_t use) {
  for (uint32_t peer = 0; peer < group.ranks; ++peer) {
    if (peer == group.rank) continue;
    Patience patience;
    while ((int32_t)((uint32_t)load_acquire(&own->begun[peer]) - use) < 0)
      if (!patience.again(group, peer)) return false;
  }
  return true;
}

// Whether the announcements seen before `use` prove that the readers of a slot, written last by use `last`, are done.
__device__ __forceinline__ bool is_proven(uint32_t use, uint32_t last, uint32_t expiry) {
  return (int32_t)(use - 1 - (last + expiry)) >= 0;
}

}  // namespace ulysses
