// Bytes of the tensors that live, and their peak, as the allocator counts them: what was asked for,
// without the allocator's rounding and without what it keeps for later. This is what `muster plan`
// predicts, and what a step report says. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include <c10/core/Device.h>

namespace muster {

struct TensorMemory {
  int64_t current_bytes = 0, peak_bytes = 0;
};

class MemoryCounter {
 public:
  void Add(int64_t bytes) {
    const int64_t now = current_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  void Subtract(int64_t bytes) { current_.fetch_sub(bytes, std::memory_order_relaxed); }
  TensorMemory Read() const { return {current_.load(), peak_.load()}; }

 private:
  std::atomic<int64_t> current_ = 0, peak_ = 0;
};

// That of CPU tensors made by this thread from now on: the process's, unless one is set here (ranks
// as threads). A tensor stays with its counter, whoever frees it, so the counter must outlive it.
MemoryCounter& CpuMemoryCounter();
void SetCpuMemoryCounter(MemoryCounter* counter);  // null: the process's

// How a device's allocator is asked. LibTorch's CUDA allocator is linked only where CUDA is
// (worker/cuda), so it comes in by registration.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual TensorMemory Read(c10::Device device) const = 0;
};
void RegisterDeviceMemory(const DeviceMemory* memory);  // once, before the first tensor

// On `device`. Zeros on a CPU where no counting allocator is installed (caching_allocator.h).
TensorMemory TensorMemoryOn(c10::Device device);

}  // namespace muster
