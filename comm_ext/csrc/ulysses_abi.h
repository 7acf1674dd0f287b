// What crosses the C ABI and what lies in an arena. Python mirrors these structures (ulysses/cuda_library.py), and
// ithaka_ulysses_abi() lets it check that sizes agree before anything is launched.
#pragma once
#include <stdint.h>

#define UL_ABI_VERSION 3
#define UL_MAX_RANKS 8
#define UL_MAX_TENSORS 3
#define UL_MAX_PIECES (UL_MAX_RANKS * UL_MAX_TENSORS)
#define UL_MAX_SLOTS 3
#define UL_MAX_BLOCKS 384     // blocks of one launch, and arrival words per source
#define UL_MAX_WAIT_SITES 16  // call sites that one wait covers
#ifndef UL_THREADS
#define UL_THREADS 512
#endif
#define UL_FEW_PIECES 6  // of a call that travels as a short kernel parameter

// Rows of one tensor for one rank. Unit number u of the piece lies in row u / row_units; row r is number r % inner_rows
// of group r / inner_rows. Divisions are a multiplication and a shift: q = (n * magic) >> shift, exact for n < 2^31.
typedef struct UlPiece {
  uint64_t source;  // bytes from the tensor's first element; an address once bound
  uint64_t target;  // bytes from the slot's place in the target's arena; an address once bound
  int64_t source_outer, source_inner, target_outer, target_inner;  // bytes between groups, and between rows
  uint32_t units, row_units, row_magic, row_shift;
  uint32_t inner_rows, inner_magic, inner_shift, tensor;
} UlPiece;

// One kernel launch, but for its pieces.
typedef struct UlCall {
  uint64_t arena[UL_MAX_RANKS];  // every rank's arena as mapped in this process
  uint64_t region;               // bytes from an arena's start
  uint64_t timeout_ns;
  uint64_t host_words;           // device address of UlHostWords
  uint32_t rank, ranks, tensors, signature;
  uint32_t remote_blocks, local_blocks;  // the first blocks serve peers, the others copy the own share
  uint32_t slot, expiry;                 // a slot last used at m is free once its readers began use m + expiry
  uint32_t copies, waits;                // whether the copy engine has a share; whether block 0 stays until all came
} UlCall;

typedef struct UlWaitSite {
  uint64_t region;
  uint32_t signature;
  uint32_t words;   // arrival words of each source's kernel
  uint32_t copies;  // whether each source's copy engine has a word of its own
  uint32_t pad;
} UlWaitSite;

typedef struct UlWait {
  UlWaitSite site[UL_MAX_WAIT_SITES];
  uint64_t arena[UL_MAX_RANKS];
  uint64_t timeout_ns;
  uint64_t host_words;
  uint32_t rank, ranks, sites, pad;
} UlWait;

// Contiguous bytes from the slot to tensors of the caller, all aligned to 16 bytes.
typedef struct UlOutput {
  uint64_t source[UL_MAX_TENSORS], target[UL_MAX_TENSORS], bytes[UL_MAX_TENSORS];
  uint32_t tensors, pad;
} UlOutput;

// The first bytes of an arena.
typedef struct UlArenaWords {
  uint64_t fault;  // code << 8 | culprit; written by this rank alone, sticky
  uint64_t told;   // the same, written by peers
  uint64_t pad[14];
} UlArenaWords;

// One per block number, so that no block depends on another's progress. A launch of n blocks keeps all of them in step:
// block b writes the states b, b + n, b + 2n, ...
typedef struct UlBlockState {
  uint32_t uses;                 // finished uses of the region
  uint32_t copied;               // those of them in which the copy engine had a share
  uint32_t last[UL_MAX_SLOTS];   // the use that wrote each slot last
} UlBlockState;

// The device's part of a region, at the same offset in every arena.
typedef struct UlRegion {
  UlBlockState state[UL_MAX_BLOCKS];                       // own rank only
  uint64_t arrival[2][UL_MAX_RANKS][UL_MAX_BLOCKS];        // written by peers: signature << 32 | use, by parity of the use
  uint64_t copied[2][UL_MAX_RANKS];                        // written by peers: signature << 32 | number of the copied use, by its parity
  uint64_t begun[UL_MAX_RANKS];                            // written by peers: the use they begin, in an opening barrier
  uint64_t marked;                                         // own rank only: copied uses that were announced
  uint64_t pad[7];
} UlRegion;

// Pinned host memory, mapped into the device.
typedef struct UlHostWords {
  uint64_t abort;   // written by the host: stop waiting; code << 8 | culprit
  uint64_t fault;   // written by the device: what it found, or was told
  uint64_t pad[6];
} UlHostWords;

// A peer copy of the copy engine: `height` rows of `width` bytes.
typedef struct UlCopy {
  uint64_t source, target;  // offsets as in UlPiece
  uint64_t source_pitch, target_pitch, width, height;
  uint32_t tensor, peer;
} UlCopy;

#define UL_MAX_COPIES (UL_MAX_PIECES * 4)

// All that is known before a call: made once for a call site and a layout of its inputs.
typedef struct UlPlan {
  UlCall call;
  UlPiece piece[UL_MAX_PIECES];  // unbound. Peers in rotation order (rank + 1, rank + 2, ...), `tensors` each; then the own share
  UlCopy copy[UL_MAX_COPIES];
  uint64_t window;               // bytes from an arena's start to slot 0
  uint64_t slot_bytes;
  uint64_t result_offset[UL_MAX_TENSORS], result_bytes[UL_MAX_TENSORS];  // in the slot
  uint32_t copies, unit_bytes, device, pad;
} UlPlan;

enum { UL_TIMED_OUT = 1, UL_DISAGREED = 2, UL_ABORTED = 3 };
