// Queries and keys on their way to the ranks that attend with them: normed and turned in registers, in float32.
//
// A warp takes a row (a token's queries, or its keys), so that the norm over all heads is a sum over its lanes. Lane l holds
// units l, l + 32, ...: a round of units covers whole heads, so a lane always has the same channels of a head, and needs the
// phases of those only. Values go along as in the plain kernel, and so do the words: see ulysses_words.cuh.
#pragma once
#include "fused_abi.h"
#include "ulysses_kernels.cuh"

#ifndef UL_FUSED_INTRINSICS  // a test runs this kernel on the CPU
#define UL_FUSED_INTRINSICS "fused_intrinsics.cuh"
#endif
#include UL_FUSED_INTRINSICS

namespace ulysses {

// What a fused kernel gets; targets are addresses in the slot.
struct FusedSending {
  UlCall call;
  UlFusedPlan plan;
  UlFusedSources source;
  UlPiece value[UL_MAX_RANKS];  // bound, in rotation order
};

struct Float32 {};

// A unit as float32 numbers.
template <typename Number>
struct Unit {
  static constexpr int kCount = 8;
  static __device__ __forceinline__ void unpack(const uint4& unit, float* value) {
    const uint32_t word[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = Number::unpack(word[i]);
      value[2 * i] = pair.x, value[2 * i + 1] = pair.y;
    }
  }
  static __device__ __forceinline__ uint4 pack(const float* value) {
    return {Number::pack(value[0], value[1]), Number::pack(value[2], value[3]), Number::pack(value[4], value[5]),
            Number::pack(value[6], value[7])};
  }
};

template <>
struct Unit<Float32> {
  static constexpr int kCount = 4;
  static __device__ __forceinline__ void unpack(const uint4& unit, float* value) {
    value[0] = __uint_as_float(unit.x), value[1] = __uint_as_float(unit.y);
    value[2] = __uint_as_float(unit.z), value[3] = __uint_as_float(unit.w);
  }
  static __device__ __forceinline__ uint4 pack(const float* value) {
    return {__float_as_uint(value[0]), __float_as_uint(value[1]), __float_as_uint(value[2]), __float_as_uint(value[3])};
  }
};

// `count` floats from an address aligned to as many bytes, or to 16.
template <int kCount>
__device__ __forceinline__ void load_floats(const float* from, float* value) {
  static_assert(kCount % 4 == 0, "whole float4s");
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 four = __ldg(reinterpret_cast<const float4*>(from + i));
    value[i] = four.x, value[i + 1] = four.y, value[i + 2] = four.z, value[i + 3] = four.w;
  }
}

// Sum over the `lanes` (a power of two) that stand together.
__device__ __forceinline__ float sum_over(float value, uint32_t lanes) {
  for (uint32_t distance = lanes / 2; distance != 0; distance /= 2) value += from_neighbour(value, distance);
  return value;
}

template <int kCount>
__device__ __forceinline__ float square_sum(const float* value) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += value[i] * value[i];
  return sum;
}

// The angles of one lane's channels, (cos, sin) each: of neighbours that turn together, or of channels half a head apart.
template <typename Number, bool kHalves>
struct Phases {
  static constexpr int kCount = Unit<Number>::kCount;
  float angle[kHalves ? 2 * kCount : kCount];
  bool upper;

  __device__ __forceinline__ void load(const float* token, uint32_t lane_of_head, uint32_t head_units) {
    if constexpr (kHalves) {
      upper = lane_of_head >= head_units / 2;
      load_floats<2 * kCount>(token + (lane_of_head % (head_units / 2)) * 2 * kCount, angle);
    } else {
      load_floats<kCount>(token + lane_of_head * kCount, angle);
    }
  }

  __device__ __forceinline__ void turn(float* value, uint32_t head_units) const {
    if constexpr (kHalves) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float other = from_neighbour(value[i], head_units / 2);
        const float sine = upper ? angle[2 * i + 1] : -angle[2 * i + 1];
        value[i] = value[i] * angle[2 * i] + other * sine;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        const float real = value[i], imaginary = value[i + 1];
        value[i] = real * angle[i] - imaginary * angle[i + 1];
        value[i + 1] = real * angle[i + 1] + imaginary * angle[i];
      }
    }
  }
};

// One row's way from its source to all ranks; `may_store` is asked by all lanes together. Rows of more than kUnits units a lane
// are read again for the second pass. False: the group is broken.
template <typename Number, bool kHalves, int kUnits, typename Gate>
__device__ __forceinline__ bool send_row(const FusedSending& sending, uint32_t which, uint32_t batch, uint32_t token, Gate& may_store) {
  constexpr int kCount = Unit<Number>::kCount;
  const UlFusedPlan& plan = sending.plan;
  const UlFusedTensor& tensor = plan.tensor[which];
  const uint32_t lane = threadIdx.x % UL_LANES, head_units = 1u << plan.head_units_log2;
  const uint32_t lane_of_head = lane % head_units, units = tensor.units;
  // Unit number lane + round * UL_LANES lies `round * stride` bytes after the lane's first one.
  const uint64_t first = sending.source.tensor[which] + (int64_t)batch * tensor.source_batch + (int64_t)token * tensor.source_token +
                         (int64_t)(lane >> plan.head_units_log2) * tensor.source_head + lane_of_head * sizeof(uint4);
  const int64_t stride = (int64_t)(UL_LANES >> plan.head_units_log2) * tensor.source_head;
  const bool at_once = units <= kUnits * UL_LANES;
  uint4 held[kUnits];

  const auto load = [&](uint32_t from) {
    const uint64_t address = first + (int64_t)(from / UL_LANES) * stride;
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      if (from + i * UL_LANES + lane < units) held[i] = load_once(reinterpret_cast<const uint4*>(address + i * stride));
  };

  float scale = 1.0f;
  if (at_once || plan.norm == UL_ROW_NORM) {
    float sum = 0.0f;
    for (uint32_t from = 0; from < units; from += kUnits * UL_LANES) {
      load(from);
      if (plan.norm != UL_ROW_NORM) break;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        if (from + i * UL_LANES + lane < units) {
          float value[kCount];
          Unit<Number>::unpack(held[i], value);
          sum += square_sum<kCount>(value);
        }
      }
    }
    if (plan.norm == UL_ROW_NORM)
      scale = reciprocal_root(sum_over(sum, UL_LANES) / (float)(units * kCount) + plan.eps);
  }
  Phases<Number, kHalves> phases;
  if (plan.turn != UL_NO_TURN)
    phases.load(reinterpret_cast<const float*>(sending.source.phases + (int64_t)batch * plan.phase_batch +
                                               (int64_t)token * plan.phase_token),
                lane_of_head, head_units);
  if (!all_lanes(may_store())) return false;

  const float* weight = reinterpret_cast<const float*>(sending.source.weight[which]);
  const uint64_t row = (uint64_t)batch * plan.target_tokens + token;
  for (uint32_t from = 0; from < units; from += kUnits * UL_LANES) {
    if (!at_once) load(from);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const uint32_t unit = from + i * UL_LANES + lane;
      if (unit - lane >= units) break;  // the same for all lanes
      float value[kCount];
      Unit<Number>::unpack(held[i], value);
      if (plan.norm == UL_HEAD_NORM) {
        const float sum = sum_over(square_sum<kCount>(value), head_units);
        scale = reciprocal_root(sum / (float)(head_units * kCount) + plan.eps);
      }
      if (plan.norm != UL_NO_NORM) {
        float factor[kCount];
        const uint32_t channel = (plan.norm == UL_HEAD_NORM ? lane_of_head : min(unit, units - 1)) * kCount;
        load_floats<kCount>(weight + channel, factor);
#pragma unroll
        for (int k = 0; k < kCount; ++k) value[k] = value[k] * scale * factor[k];
      }
      if (plan.turn != UL_NO_TURN) phases.turn(value, head_units);
      if (unit < units) {
        uint32_t rank = 0;
        for (uint32_t next = 1; next < sending.call.ranks; ++next)
          if (unit >= tensor.first_unit[next]) rank = next;
        const uint64_t target = tensor.target[rank] + row * tensor.target_row[rank];
        reinterpret_cast<uint4*>(target)[unit - tensor.first_unit[rank]] = Unit<Number>::pack(value);
      }
    }
  }
  return true;
}

// Queries and keys by rows, then this block's share of the values, then the words.
//
// Rows first: all lanes of a warp ask the gate together there, and a lane that waited in it alone could keep another one from
// beginning the opening barrier.
template <typename Number, bool kHalves, int kUnits>
__global__ void __launch_bounds__(UL_THREADS, 1) fused_kernel(const __grid_constant__ FusedSending sending) {
  const UlCall& call = sending.call;
  const Group group = group_of(call);
  UlRegion* own = group.region_of(call.rank, call.region);
  const uint64_t fault = fault_of(group);
  const uint32_t use = own->state[blockIdx.x].uses + 1;
  const uint32_t copied = own->state[blockIdx.x].copied;
  const uint32_t last = own->state[blockIdx.x].last[call.slot];

  SlotGate gate{call, fault, use, last, false, false};
  const uint32_t rows = sending.plan.batch * sending.plan.tokens, warps = gridDim.x * (UL_THREADS / UL_LANES);
  for (uint32_t row = blockIdx.x + gridDim.x * (threadIdx.x / UL_LANES); row < 2 * rows; row += warps) {
    const uint32_t batch = row / 2 / sending.plan.tokens;
    if (!send_row<Number, kHalves, kUnits>(sending, row % 2, batch, row / 2 - batch * sending.plan.tokens, gate)) break;
  }
  for (uint32_t step = 0; step < call.ranks; ++step) {
    const UlPiece& piece = sending.value[(step + blockIdx.x) % call.ranks];
    copy_piece<uint4>(piece, Share(blockIdx.x, gridDim.x), gate);
  }
  if (__syncthreads_or(!gate())) return;
  announce(call, group, use);
  count_use(own, call.slot, use, copied);
  if (call.waits && blockIdx.x == 0) await_call(call, use, copied);
}

}  // namespace ulysses
