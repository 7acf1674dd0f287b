// The fused call's part of the C ABI; a part of ulysses.cu, whose launching it uses.
#pragma once
#include "fused_kernels.cuh"

namespace {

using FusedKernel = void (*)(ulysses::FusedSending);
constexpr int kFusedUnits[] = {6, 12, 20};  // units that a lane holds at once: rows of 3, 6 and 10 KiB

template <typename Number, bool kHalves>
FusedKernel fused_kernel_for(uint32_t units) {
  if (units <= kFusedUnits[0] * UL_LANES) return ulysses::fused_kernel<Number, kHalves, kFusedUnits[0]>;
  if (units <= kFusedUnits[1] * UL_LANES) return ulysses::fused_kernel<Number, kHalves, kFusedUnits[1]>;
  return ulysses::fused_kernel<Number, kHalves, kFusedUnits[2]>;
}

template <bool kHalves>
FusedKernel fused_kernel_for(uint32_t number, uint32_t units) {
  switch (number) {
    case UL_BFLOAT16: return fused_kernel_for<ulysses::BFloat16, kHalves>(units);
    case UL_FLOAT16: return fused_kernel_for<ulysses::Float16, kHalves>(units);
    case UL_FLOAT32: return fused_kernel_for<ulysses::Float32, kHalves>(units);
    default: return nullptr;
  }
}

FusedKernel fused_kernel_for(uint32_t number, uint32_t turn, uint32_t units) {
  return turn == UL_TURN_HALVES ? fused_kernel_for<true>(number, units) : fused_kernel_for<false>(number, units);
}

cudaError_t launch_fused(const UlPlan& plan, const UlFusedPlan& fused, const UlCall& call, const UlFusedSources& sources,
                         cudaStream_t stream) {
  const uint32_t units = fused.tensor[0].units > fused.tensor[1].units ? fused.tensor[0].units : fused.tensor[1].units;
  const FusedKernel kernel = fused_kernel_for(fused.number, fused.turn, units);
  if (kernel == nullptr || plan.unit_bytes != 16) return cudaErrorInvalidValue;
  ulysses::FusedSending sending;
  sending.call = call;
  sending.plan = fused;
  sending.source = sources;
  const uint64_t start = plan.window + call.slot * plan.slot_bytes;
  for (uint32_t rank = 0; rank < call.ranks; ++rank)
    for (UlFusedTensor& tensor : sending.plan.tensor) tensor.target[rank] += call.arena[rank] + start;
  for (uint32_t step = 0; step < call.ranks; ++step) {
    const uint64_t target = call.arena[(call.rank + 1 + step) % call.ranks] + start;
    sending.value[step] = bind(plan.piece[step * call.tensors + 2], target, sources.tensor);
  }
  return launch(kernel, call.remote_blocks, UL_THREADS, stream, sending);
}

cudaError_t load_fused_kernels() {
  for (uint32_t number : {UL_BFLOAT16, UL_FLOAT16, UL_FLOAT32})
    for (uint32_t turn : {UL_TURN_PAIRS, UL_TURN_HALVES})
      for (int units : kFusedUnits) {
        cudaFuncAttributes attributes;
        const void* kernel = reinterpret_cast<const void*>(fused_kernel_for(number, turn, units * UL_LANES));
        const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
        if (status != cudaSuccess) return status;
      }
  return cudaSuccess;
}

}  // namespace

extern "C" {

// Sizes that the Python mirror must agree with: tensor, plan, sources.
int ul_fused_abi(uint64_t sizes[3]) {
  sizes[0] = sizeof(UlFusedTensor), sizes[1] = sizeof(UlFusedPlan), sizes[2] = sizeof(UlFusedSources);
  return 0;
}

// As ul_exchange with three tensors, of which the first two are normed and turned on their way. The plan has no copies, all
// its blocks are remote blocks, and its units have 16 bytes.
int ul_fused_exchange(const UlPlan* plan, const UlFusedPlan* fused, uint32_t slot, const UlFusedSources* sources,
                      const uint64_t* targets, cudaStream_t stream) {
  OnDevice guard((int)plan->device);
  UL_TRY(guard.status());
  UlCall call = plan->call;
  call.slot = slot;
  call.waits = 1;
  UL_TRY(launch_fused(*plan, *fused, call, *sources, stream));
  return targets == nullptr ? 0 : (int)launch_output(*plan, slot, targets, stream);
}

}  // extern "C"
