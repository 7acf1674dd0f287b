// Where a unit comes from and where it goes. Host compilers read this too: a test runs every thread of a launch on the CPU.
#pragma once
#include "ulysses_abi.h"

#ifdef __CUDACC__
#define UL_BOTH __host__ __device__ __forceinline__
#else
#define UL_BOTH static inline
#endif

typedef struct UlPlace {
  uint64_t source, target;
} UlPlace;

UL_BOTH uint32_t ul_divide(uint32_t number, uint32_t magic, uint32_t shift) {
  return (uint32_t)(((uint64_t)number * magic) >> shift);
}

UL_BOTH UlPlace ul_place(const UlPiece* piece, uint32_t unit, uint32_t unit_bytes) {
  const uint32_t row = ul_divide(unit, piece->row_magic, piece->row_shift);
  const uint64_t column = (uint64_t)(unit - row * piece->row_units) * unit_bytes;
  const uint32_t outer = ul_divide(row, piece->inner_magic, piece->inner_shift);
  const uint32_t inner = row - outer * piece->inner_rows;
  UlPlace place;
  place.source = piece->source + column + (int64_t)outer * piece->source_outer + (int64_t)inner * piece->source_inner;
  place.target = piece->target + column + (int64_t)outer * piece->target_outer + (int64_t)inner * piece->target_inner;
  return place;
}
