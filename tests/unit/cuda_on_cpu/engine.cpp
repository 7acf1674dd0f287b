// The exchange's engine for a CPU: its own sources over the cuda_runtime.h beside this file.
#include "cuda_runtime.h"
#include "ulysses.cu"

extern "C" void cpu_set_recording(unsigned long long id) { cpu::recording = id; }
