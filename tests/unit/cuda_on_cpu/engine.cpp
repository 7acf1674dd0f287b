// The exchange's engine for a CPU: its own sources over the cuda_runtime.h beside this file.
#include "cuda_runtime.h"
#include "ulysses.cu"

void* cpu_record_begin(unsigned long long id) {
  cpu::recording = id;
  return cpu::recorder = new cpu::Recording;
}
void cpu_record_end() { cpu::recording = 0, cpu::recorder = nullptr; }
void cpu_replay(void* recording) { static_cast<cpu::Recording*>(recording)->replay(); }
void cpu_record_free(void* recording) { delete static_cast<cpu::Recording*>(recording); }
