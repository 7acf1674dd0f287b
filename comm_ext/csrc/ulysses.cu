// The C ABI of the exchange: memory, handles, plans, calls. No torch here, so one build serves every version of it.
//
// Functions return 0 or a cudaError_t; ul_error names it. Each leaves the thread's current device as it found it.
#include <cuda_runtime.h>

#include <new>

#include "ulysses_kernels.cuh"
#include "ulysses_turn.h"

namespace {

#ifndef ITHAKA_SOURCE_HASH
#define ITHAKA_SOURCE_HASH "unknown"
#endif

// Makes `device` current for one call.
class OnDevice {
 public:
  explicit OnDevice(int device) : wanted_(device) {
    status_ = cudaGetDevice(&before_);
    if (status_ == cudaSuccess && before_ != wanted_) status_ = cudaSetDevice(wanted_);
  }
  ~OnDevice() {
    if (before_ >= 0 && before_ != wanted_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  cudaError_t status() const { return status_; }

 private:
  int wanted_, before_ = -1;
  cudaError_t status_;
};

#define UL_TRY(expression)                              \
  do {                                                  \
    const cudaError_t ul_status = (expression);         \
    if (ul_status != cudaSuccess) return (int)ul_status; \
  } while (0)

static_assert(UL_THREADS >= UL_MAX_RANKS, "a block has a thread for each rank");

template <typename Argument>
cudaError_t launch(void (*kernel)(Argument), uint32_t blocks, uint32_t threads, cudaStream_t stream, const Argument& argument) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, argument);
}

// A piece with addresses: its source in the caller's tensor, its target in the slot.
UlPiece bind(const UlPiece& piece, uint64_t target, const uint64_t* sources) {
  UlPiece bound = piece;
  bound.source += sources[piece.tensor];
  bound.target += target;
  return bound;
}

template <int kPieces>
cudaError_t launch_send(const UlPlan& plan, const UlCall& call, const uint64_t* sources, cudaStream_t stream) {
  ulysses::Sending<kPieces> sending;
  sending.call = call;
  const uint64_t start = plan.window + call.slot * plan.slot_bytes;
  for (uint32_t step = 0; step < call.ranks; ++step) {
    const uint64_t target = call.arena[(call.rank + 1 + step) % call.ranks] + start;  // the last step is the own share
    for (uint32_t index = step * call.tensors; index < (step + 1) * call.tensors; ++index)
      sending.piece[index] = bind(plan.piece[index], target, sources);
  }
  const uint32_t blocks = call.remote_blocks + call.local_blocks;
  switch (plan.unit_bytes) {
    case 16: return launch(ulysses::send_kernel<uint4, kPieces>, blocks, UL_THREADS, stream, sending);
    case 8: return launch(ulysses::send_kernel<uint2, kPieces>, blocks, UL_THREADS, stream, sending);
    case 4: return launch(ulysses::send_kernel<uint32_t, kPieces>, blocks, UL_THREADS, stream, sending);
    case 2: return launch(ulysses::send_kernel<uint16_t, kPieces>, blocks, UL_THREADS, stream, sending);
    case 1: return launch(ulysses::send_kernel<uint8_t, kPieces>, blocks, UL_THREADS, stream, sending);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t launch_send(const UlPlan& plan, const UlCall& call, const uint64_t* sources, cudaStream_t stream) {
  if (call.ranks * call.tensors <= UL_FEW_PIECES) return launch_send<UL_FEW_PIECES>(plan, call, sources, stream);
  return launch_send<UL_MAX_PIECES>(plan, call, sources, stream);
}

cudaError_t issue_copies(const UlPlan& plan, uint32_t slot, const uint64_t* sources, cudaStream_t stream) {
  const uint64_t start = plan.window + slot * plan.slot_bytes;
  for (uint32_t index = 0; index < plan.copies; ++index) {
    const UlCopy& copy = plan.copy[index];
    void* target = reinterpret_cast<void*>(plan.call.arena[copy.peer] + start + copy.target);
    const void* source = reinterpret_cast<const void*>(sources[copy.tensor] + copy.source);
    const cudaError_t status =
        copy.height == 1 ? cudaMemcpyAsync(target, source, copy.width, cudaMemcpyDefault, stream)
                         : cudaMemcpy2DAsync(target, copy.target_pitch, source, copy.source_pitch, copy.width, copy.height,
                                             cudaMemcpyDefault, stream);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

UlWait wait_of(const UlCall& call) {
  UlWait wait = {};
  for (uint32_t rank = 0; rank < call.ranks; ++rank) wait.arena[rank] = call.arena[rank];
  wait.timeout_ns = call.timeout_ns;
  wait.host_words = call.host_words;
  wait.rank = call.rank;
  wait.ranks = call.ranks;
  return wait;
}


constexpr uint32_t kOutputBlocks = 128;
constexpr uint64_t kOutputBytesPerBlock = UL_ROUND * sizeof(uint4) * UL_THREADS;

cudaError_t launch_output(const UlPlan& plan, uint32_t slot, const uint64_t* targets, cudaStream_t stream) {
  UlOutput output = {};
  output.tensors = plan.call.tensors;
  uint64_t bytes = 0;
  for (uint32_t index = 0; index < output.tensors; ++index) {
    output.source[index] =
        plan.call.arena[plan.call.rank] + plan.window + slot * plan.slot_bytes + plan.result_offset[index];
    output.target[index] = targets[index];
    output.bytes[index] = plan.result_bytes[index];
    bytes += plan.result_bytes[index];
  }
  const uint64_t blocks = (bytes + kOutputBytesPerBlock - 1) / kOutputBytesPerBlock;
  return launch(ulysses::output_kernel, (uint32_t)(blocks > kOutputBlocks ? kOutputBlocks : blocks), UL_THREADS, stream, output);
}

// The recording that the stream is in; 0: none.
cudaError_t recording_of(cudaStream_t stream, unsigned long long* recording) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
#if CUDART_VERSION >= 13000
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, recording, nullptr, nullptr, nullptr, nullptr);
#else
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, recording);
#endif
  if (status != cudaStreamCaptureStatusActive) *recording = 0;
  return error;
}

// Kernels see for themselves whether their slot is free; copies can't.
cudaError_t take_turn(UlTurn* turn, const UlPlan& plan, cudaStream_t stream, int* opens) {
  unsigned long long recording = 0;
  const cudaError_t error = recording_of(stream, &recording);
  if (error != cudaSuccess) return error;
  *opens = ul_must_open(turn, recording, plan.call.expiry + 1);
  return cudaSuccess;
}

}  // namespace

#include "fused_calls.cuh"

extern "C" {

const char* ul_source_hash() { return ITHAKA_SOURCE_HASH; }

const char* ul_error(int status) { return cudaGetErrorString((cudaError_t)status); }

// Sizes that the Python mirror must agree with: version, piece, call, copy, plan, region, arena words, host words.
int ul_abi(uint64_t sizes[8]) {
  const uint64_t own[8] = {UL_ABI_VERSION, sizeof(UlPiece),  sizeof(UlCall),       sizeof(UlCopy),
                           sizeof(UlPlan), sizeof(UlRegion), sizeof(UlArenaWords), sizeof(UlHostWords)};
  for (int index = 0; index < 8; ++index) sizes[index] = own[index];
  return 0;
}

int ul_device_facts(int device, int* multiprocessors, int* major, int* minor, char uuid[16]) {
  UL_TRY(cudaDeviceGetAttribute(multiprocessors, cudaDevAttrMultiProcessorCount, device));
  UL_TRY(cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device));
  UL_TRY(cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device));
  cudaDeviceProp properties;
  UL_TRY(cudaGetDeviceProperties(&properties, device));
  for (int index = 0; index < 16; ++index) uuid[index] = properties.uuid.bytes[index];
  return 0;
}

// Load all kernels now: a kernel that is loaded at its first launch may wait for the device, and so for a kernel that waits for
// a peer. cudaErrorNoKernelImageForDevice: this build has no machine code for the device.
int ul_load_kernels(int device) {
  OnDevice guard(device);
  UL_TRY(guard.status());
  const void* kernels[] = {
      reinterpret_cast<const void*>(ulysses::send_kernel<uint4, UL_FEW_PIECES>),
      reinterpret_cast<const void*>(ulysses::send_kernel<uint2, UL_FEW_PIECES>),
      reinterpret_cast<const void*>(ulysses::send_kernel<uint32_t, UL_FEW_PIECES>),
      reinterpret_cast<const void*>(ulysses::send_kernel<uint16_t, UL_FEW_PIECES>),
      reinterpret_cast<const void*>(ulysses::send_kernel<uint8_t, UL_FEW_PIECES>),
      reinterpret_cast<const void*>(ulysses::send_kernel<uint4, UL_MAX_PIECES>),
      reinterpret_cast<const void*>(ulysses::send_kernel<uint2, UL_MAX_PIECES>),
      reinterpret_cast<const void*>(ulysses::send_kernel<uint32_t, UL_MAX_PIECES>),
      reinterpret_cast<const void*>(ulysses::send_kernel<uint16_t, UL_MAX_PIECES>),
      reinterpret_cast<const void*>(ulysses::send_kernel<uint8_t, UL_MAX_PIECES>),
      reinterpret_cast<const void*>(ulysses::mark_kernel),
      reinterpret_cast<const void*>(ulysses::wait_kernel),
      reinterpret_cast<const void*>(ulysses::open_kernel),
      reinterpret_cast<const void*>(ulysses::output_kernel),
  };
  for (const void* kernel : kernels) {
    cudaFuncAttributes attributes;
    UL_TRY(cudaFuncGetAttributes(&attributes, kernel));
  }
  return (int)load_fused_kernels();
}

// Peers map an exported allocation in pages of 2 MiB only if its size is a multiple of them. In smaller pages the copy engine
// lost a fifth of its speed (2 x H200, 83.9 MB each way: 312 GB/s instead of 381).
static const uint64_t kPageBytes = 2u << 20;

// Device memory, with its first `zeroed_bytes` cleared.
int ul_arena_create(int device, uint64_t bytes, uint64_t zeroed_bytes, uint64_t* address) {
  OnDevice guard(device);
  UL_TRY(guard.status());
  void* memory = nullptr;
  UL_TRY(cudaMalloc(&memory, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes));
  const cudaError_t status = cudaMemset(memory, 0, zeroed_bytes);
  const cudaError_t settled = status == cudaSuccess ? cudaDeviceSynchronize() : status;
  if (settled != cudaSuccess) {
    cudaFree(memory);
    return (int)settled;
  }
  *address = reinterpret_cast<uint64_t>(memory);
  return 0;
}

int ul_arena_free(int device, uint64_t address) {
  OnDevice guard(device);
  UL_TRY(guard.status());
  return (int)cudaFree(reinterpret_cast<void*>(address));
}

int ul_handle_export(int device, uint64_t address, char handle[64]) {
  OnDevice guard(device);
  UL_TRY(guard.status());
  cudaIpcMemHandle_t memory;
  UL_TRY(cudaIpcGetMemHandle(&memory, reinterpret_cast<void*>(address)));
  static_assert(sizeof(memory) == 64, "a handle has 64 bytes");
  for (int index = 0; index < 64; ++index) handle[index] = memory.reserved[index];
  return 0;
}

int ul_handle_open(int device, const char handle[64], uint64_t* address) {
  OnDevice guard(device);
  UL_TRY(guard.status());
  cudaIpcMemHandle_t memory;
  for (int index = 0; index < 64; ++index) memory.reserved[index] = handle[index];
  void* mapped = nullptr;
  UL_TRY(cudaIpcOpenMemHandle(&mapped, memory, cudaIpcMemLazyEnablePeerAccess));
  *address = reinterpret_cast<uint64_t>(mapped);
  return 0;
}

int ul_handle_close(int device, uint64_t address) {
  OnDevice guard(device);
  UL_TRY(guard.status());
  return (int)cudaIpcCloseMemHandle(reinterpret_cast<void*>(address));
}

// Peers in one process: the other device's memory is mapped by peer access instead of a handle.
int ul_peer_enable(int device, int peer) {
  if (device == peer) return 0;
  OnDevice guard(device);
  UL_TRY(guard.status());
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return 0;
  }
  return (int)status;
}

int ul_host_words_create(int device, uint64_t* host_address, uint64_t* device_address) {
  OnDevice guard(device);
  UL_TRY(guard.status());
  void* host = nullptr;
  UL_TRY(cudaHostAlloc(&host, sizeof(UlHostWords), cudaHostAllocMapped | cudaHostAllocPortable));
  *static_cast<UlHostWords*>(host) = UlHostWords{};
  void* mapped = nullptr;
  const cudaError_t status = cudaHostGetDevicePointer(&mapped, host, 0);
  if (status != cudaSuccess) {
    cudaFreeHost(host);
    return (int)status;
  }
  *host_address = reinterpret_cast<uint64_t>(host);
  *device_address = reinterpret_cast<uint64_t>(mapped);
  return 0;
}

int ul_host_words_free(uint64_t host_address) { return (int)cudaFreeHost(reinterpret_cast<void*>(host_address)); }

// Return when the stream has done what it holds; at once while it records.
int ul_finish(int device, cudaStream_t stream) {
  OnDevice guard(device);
  UL_TRY(guard.status());
  unsigned long long recording = 0;
  UL_TRY(recording_of(stream, &recording));
  return recording != 0 ? 0 : (int)cudaStreamSynchronize(stream);
}

// A stream for copies, of the highest priority, and two events that order it with the caller's stream.
typedef struct UlLane {
  cudaStream_t stream;
  cudaEvent_t begun, sent;
} UlLane;

int ul_lane_create(int device, UlLane** lane) {
  OnDevice guard(device);
  UL_TRY(guard.status());
  int least = 0, greatest = 0;
  UL_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  UlLane* made = new (std::nothrow) UlLane{};
  if (made == nullptr) return (int)cudaErrorMemoryAllocation;
  cudaError_t status = cudaStreamCreateWithPriority(&made->stream, cudaStreamNonBlocking, greatest);
  for (cudaEvent_t* event : {&made->begun, &made->sent})
    if (status == cudaSuccess) status = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
  *lane = made;
  return (int)status;
}

int ul_lane_destroy(int device, UlLane* lane) {
  OnDevice guard(device);
  UL_TRY(guard.status());
  for (cudaEvent_t event : {lane->begun, lane->sent})
    if (event != nullptr) cudaEventDestroy(event);
  if (lane->stream != nullptr) cudaStreamDestroy(lane->stream);
  delete lane;
  return 0;
}

int ul_synchronize(int device) {
  OnDevice guard(device);
  UL_TRY(guard.status());
  return (int)cudaDeviceSynchronize();
}

// The copy engine's share of a call, behind what `stream` holds so far; first the opening barrier where it may be needed. It
// announces itself, so the send kernel beside it need not end before. After it `sent` is the lane's end.
static cudaError_t send_copies(const UlPlan& plan, UlLane* lane, UlTurn* turn, const UlCall& call, const uint64_t* sources,
                                cudaStream_t stream) {
  int opens = 0;
  cudaError_t status = take_turn(turn, plan, stream, &opens);
  if (status == cudaSuccess && opens) status = launch(ulysses::open_kernel, 1, 32, stream, call);
  if (status == cudaSuccess) status = cudaEventRecord(lane->begun, stream);
  if (status == cudaSuccess) status = cudaStreamWaitEvent(lane->stream, lane->begun, 0);
  if (status == cudaSuccess) status = issue_copies(plan, call.slot, sources, lane->stream);
  if (status == cudaSuccess) status = launch(ulysses::mark_kernel, 1, 32, lane->stream, call);
  if (status == cudaSuccess) status = cudaEventRecord(lane->sent, lane->stream);
  return status;
}

// Send and wait: after it in stream order the slot holds the result.
//
// `targets` (null: none) are contiguous, aligned to 16 bytes, and receive copies of the results.
int ul_exchange(const UlPlan* plan, UlLane* lane, UlTurn* turn, uint32_t slot, const uint64_t* sources, const uint64_t* targets,
                cudaStream_t stream) {
  OnDevice guard((int)plan->device);
  UL_TRY(guard.status());
  UlCall call = plan->call;
  call.slot = slot;
  call.waits = 1;
  if (call.copies) UL_TRY(send_copies(*plan, lane, turn, call, sources, stream));
  UL_TRY(launch_send(*plan, call, sources, stream));
  if (call.copies) UL_TRY(cudaStreamWaitEvent(stream, lane->sent, 0));
  return targets == nullptr ? 0 : (int)launch_output(*plan, slot, targets, stream);
}

// Send only.
int ul_send(const UlPlan* plan, UlLane* lane, UlTurn* turn, uint32_t slot, const uint64_t* sources, cudaStream_t stream) {
  OnDevice guard((int)plan->device);
  UL_TRY(guard.status());
  UlCall call = plan->call;
  call.slot = slot;
  if (call.copies) UL_TRY(send_copies(*plan, lane, turn, call, sources, stream));
  return (int)launch_send(*plan, call, sources, stream);
}

// Wait for sends of up to UL_MAX_WAIT_SITES call sites, given by their plans; one kernel.
int ul_wait(const UlPlan* const* plans, UlLane* const* lanes, uint32_t sites, cudaStream_t stream) {
  if (sites == 0 || sites > UL_MAX_WAIT_SITES) return (int)cudaErrorInvalidValue;
  OnDevice guard((int)plans[0]->device);
  UL_TRY(guard.status());
  UlWait wait = wait_of(plans[0]->call);
  wait.sites = sites;
  for (uint32_t index = 0; index < sites; ++index) {
    const UlCall& call = plans[index]->call;
    wait.site[index] = {call.region, call.signature, call.remote_blocks, call.copies, 0};
    if (call.copies) UL_TRY(cudaStreamWaitEvent(stream, lanes[index]->sent, 0));
  }
  return (int)launch(ulysses::wait_kernel, 1, UL_THREADS, stream, wait);
}

}  // extern "C"
