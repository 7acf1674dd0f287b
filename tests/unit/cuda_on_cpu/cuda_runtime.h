// Just enough of CUDA to run the exchange's host code and kernels on a CPU: a kernel's threads are threads, device memory is
// memory. The null stream is the calling thread (whatever is issued is done at once, in order); a stream that was created is a
// thread that works through a queue, dawdling before some steps. For tests.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <thread>
#include <vector>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorPeerAccessAlreadyEnabled = 704,
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum { cudaMemcpyDefault, cudaDevAttrMultiProcessorCount, cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor };
enum { cudaHostAllocMapped = 1, cudaHostAllocPortable = 2, cudaIpcMemLazyEnablePeerAccess, cudaStreamNonBlocking, cudaEventDisableTiming };
#define CUDART_VERSION 13000

namespace cpu {

// A point in a stream's work that others wait for.
class Point {
 public:
  void reach() {
    std::lock_guard<std::mutex> lock(mutex_);
    reached_ = true;
    told_.notify_all();
  }
  void await() {
    std::unique_lock<std::mutex> lock(mutex_);
    told_.wait(lock, [&] { return reached_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable told_;
  bool reached_ = false;
};

class Stream {
 public:
  Stream() : thread_([this] { work(); }) {}
  ~Stream() {
    issue(nullptr);
    thread_.join();
  }
  void issue(std::function<void()> step) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(step));
    told_.notify_all();
  }

 private:
  void work() {
    std::minstd_rand random(std::random_device{}());
    for (;;) {
      std::function<void()> step;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        told_.wait(lock, [&] { return !queue_.empty(); });
        step = std::move(queue_.front());
        queue_.pop_front();
      }
      if (!step) return;
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      step();
    }
  }
  std::mutex mutex_;
  std::condition_variable told_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

// One replay of a recording: its events are reached anew.
struct Replay {
  explicit Replay(size_t points) {
    for (size_t point = 0; point < points; ++point) this->points.push_back(std::make_shared<Point>());
  }
  std::vector<std::shared_ptr<Point>> points;
};

// What was issued while a thread recorded, on whichever streams, in order.
struct Recording {
  void replay() {
    const auto replay = std::make_shared<Replay>(points);
    for (const auto& [stream, step] : steps) {
      if (stream == nullptr)
        step(*replay);
      else
        stream->issue([replay, step = step] { step(*replay); });
    }
  }
  std::vector<std::pair<Stream*, std::function<void(Replay&)>>> steps;
  size_t points = 0;
};

struct Event {
  std::shared_ptr<Point> newest;
  size_t recorded = 0;
};

inline thread_local Recording* recorder = nullptr;

inline void issue(Stream* stream, std::function<void()> step) {
  if (recorder != nullptr)
    recorder->steps.emplace_back(stream, [step = std::move(step)](Replay&) { step(); });
  else if (stream == nullptr)
    step();
  else
    stream->issue(std::move(step));
}

}  // namespace cpu

typedef cpu::Stream* cudaStream_t;
typedef cpu::Event* cudaEvent_t;
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1) : x(x_), y(1), z(1) {}
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};
struct cudaFuncAttributes {};
struct cudaIpcMemHandle_t {
  char reserved[64];
};
struct cudaDeviceProp {
  struct {
    char bytes[16];
  } uuid;
};
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};

inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cpu {

// bar.sync of one block; threads that have returned no longer count.
class Barrier {
 public:
  explicit Barrier(unsigned threads) : alive_(threads) {}
  bool sync(bool vote) {
    std::unique_lock<std::mutex> lock(mutex_);
    any_ |= vote;
    ++waiting_;
    const unsigned round = round_;
    if (waiting_ == alive_)
      release();
    else
      released_.wait(lock, [&] { return round_ != round; });
    return result_;
  }
  void leave() {
    std::unique_lock<std::mutex> lock(mutex_);
    --alive_;
    if (alive_ != 0 && waiting_ == alive_) release();
  }

 private:
  void release() {
    result_ = any_;
    any_ = false;
    waiting_ = 0;
    ++round_;
    released_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable released_;
  unsigned alive_, waiting_ = 0, round_ = 0;
  bool any_ = false, result_ = false;
};

inline thread_local Barrier* barrier = nullptr;
inline thread_local unsigned long long recording = 0;

template <typename Argument>
void run_grid(unsigned blocks, unsigned threads, void (*kernel)(Argument), const Argument& argument) {
  std::vector<std::thread> running;
  std::vector<Barrier*> barriers;
  for (unsigned block = 0; block < blocks; ++block) {
    barriers.push_back(new Barrier(threads));
    for (unsigned thread = 0; thread < threads; ++thread)
      running.emplace_back([=, &argument, own = barriers.back()] {
        threadIdx = dim3(thread), blockIdx = dim3(block), blockDim = dim3(threads), gridDim = dim3(blocks);
        barrier = own;
        kernel(argument);
        own->leave();
      });
  }
  for (std::thread& thread : running) thread.join();
  for (Barrier* each : barriers) delete each;
}

}  // namespace cpu

template <typename Argument>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Argument), const Argument& argument) {
  cpu::issue(config->stream, [=, grid = config->gridDim.x, block = config->blockDim.x] {
    cpu::run_grid(grid, block, kernel, argument);
  });
  return cudaSuccess;
}

inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "an emulated error"; }
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) { return *value = 1, cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) { return *properties = {}, cudaSuccess; }
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }
inline cudaError_t cudaMalloc(void** memory, size_t bytes) { return *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), cudaSuccess; }
inline cudaError_t cudaFree(void* memory) { return free(memory), cudaSuccess; }
inline cudaError_t cudaMemset(void* memory, int value, size_t bytes) { return memset(memory, value, bytes), cudaSuccess; }
inline cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) { return *memory = calloc(1, bytes), cudaSuccess; }
inline cudaError_t cudaFreeHost(void* memory) { return free(memory), cudaSuccess; }
inline cudaError_t cudaHostGetDevicePointer(void** mapped, void* host, unsigned) { return *mapped = host, cudaSuccess; }
inline cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) { return memcpy(handle->reserved, &memory, sizeof(memory)), cudaSuccess; }
inline cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) { return memcpy(memory, handle.reserved, sizeof(*memory)), cudaSuccess; }
inline cudaError_t cudaIpcCloseMemHandle(void*) { return cudaSuccess; }
inline cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, cudaSuccess; }
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return *stream = new cpu::Stream, cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = new cpu::Event, cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (cpu::recorder != nullptr) {
    event->recorded = cpu::recorder->points++;
    cpu::recorder->steps.emplace_back(stream, [at = event->recorded](cpu::Replay& replay) { replay.points[at]->reach(); });
    return cudaSuccess;
  }
  event->newest = std::make_shared<cpu::Point>();
  cpu::issue(stream, [point = event->newest] { point->reach(); });
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (cpu::recorder != nullptr) {
    cpu::recorder->steps.emplace_back(stream, [at = event->recorded](cpu::Replay& replay) { replay.points[at]->await(); });
    return cudaSuccess;
  }
  cpu::issue(stream, [point = event->newest] { point->await(); });
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto point = std::make_shared<cpu::Point>();
  cpu::issue(stream, [point] { point->reach(); });
  return point->await(), cudaSuccess;
}
inline cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id, void*, void*, void*, void*) {
  *status = cpu::recording != 0 ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  *id = cpu::recording;
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, int, cudaStream_t stream) {
#ifdef CPU_UNORDERED_COPIES  // as if they were issued to some other stream
  static cpu::Stream elsewhere;
  stream = &elsewhere;
#endif
  cpu::issue(stream, [=] {
#ifdef CPU_UNORDERED_COPIES
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
#endif
    for (size_t row = 0; row < height; ++row)
      memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  });
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, cudaStream_t stream) {
  return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

// From here on the calling thread's calls are recorded, not made; an id of its own for each recording.
extern "C" void* cpu_record_begin(unsigned long long id);
extern "C" void cpu_record_end();
extern "C" void cpu_replay(void* recording);
extern "C" void cpu_record_free(void* recording);

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __syncthreads() cpu::barrier->sync(false)
#define __syncthreads_or(vote) cpu::barrier->sync(vote)
#define __noinline__ __attribute__((noinline))
