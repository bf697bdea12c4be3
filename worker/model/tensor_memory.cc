#include "worker/model/tensor_memory.h"

namespace muster {
namespace {

const DeviceMemory*& Slot() {
  static const DeviceMemory* memory = nullptr;
  return memory;
}

MemoryCounter*& CounterOfThread() {
  thread_local MemoryCounter* counter = nullptr;
  return counter;
}

}  // namespace

MemoryCounter& CpuMemoryCounter() {
  static MemoryCounter* const process = new MemoryCounter;  // outlives every tensor
  MemoryCounter* const own = CounterOfThread();
  return own != nullptr ? *own : *process;
}

void SetCpuMemoryCounter(MemoryCounter* counter) { CounterOfThread() = counter; }

void RegisterDeviceMemory(const DeviceMemory* memory) { Slot() = memory; }

TensorMemory TensorMemoryOn(c10::Device device) {
  if (device.is_cpu()) return CpuMemoryCounter().Read();
  return Slot() != nullptr ? Slot()->Read(device) : TensorMemory{};
}

}  // namespace muster
