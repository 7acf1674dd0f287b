// What the fused call adds to the C ABI: how queries and keys are read, normed, turned and written. Python mirrors it
// (ulysses/fused_plan.py).
#pragma once
#include "ulysses_abi.h"

enum { UL_BFLOAT16 = 0, UL_FLOAT16 = 1, UL_FLOAT32 = 2 };         // UlFusedPlan.number
enum { UL_NO_NORM = 0, UL_HEAD_NORM = 1, UL_ROW_NORM = 2 };       // UlFusedPlan.norm
enum { UL_NO_TURN = 0, UL_TURN_PAIRS = 1, UL_TURN_HALVES = 2 };   // UlFusedPlan.turn

// Queries or keys. A row is one token's heads; a unit is 16 bytes of it.
typedef struct UlFusedTensor {
  int64_t source_batch, source_token, source_head;  // bytes; channels of a head lie side by side
  uint64_t target[UL_MAX_RANKS];      // bytes from a slot's start to where this rank's first token goes, by receiving rank
  uint32_t target_row[UL_MAX_RANKS];  // bytes from token to token there
  uint32_t first_unit[UL_MAX_RANKS];  // the first unit of a row that the rank receives; ascending
  uint32_t units;                     // of a row
  uint32_t pad;
} UlFusedTensor;

typedef struct UlFusedPlan {
  UlFusedTensor tensor[2];
  int64_t phase_batch, phase_token;   // bytes
  uint32_t batch, tokens, target_tokens;  // own tokens, and those of all ranks
  uint32_t head_units_log2;
  uint32_t number, norm, turn;
  float eps;
} UlFusedPlan;

// Addresses of one call. Weights are float32: of a head's channels, or of a row's; phases are float32 (cos, sin) pairs.
typedef struct UlFusedSources {
  uint64_t tensor[3];
  uint64_t weight[2];
  uint64_t phases;
} UlFusedSources;
