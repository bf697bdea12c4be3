#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime.h>

#include "benchmarks/train_single/bench_device.h"
#include "worker/cuda/device_memory.h"
#include "worker/cuda/row_ops.h"

namespace muster {

std::string UseBenchDevice(c10::Device device) {
  if (device.is_cpu()) return "";
  if (c10::cuda::device_count() == 0) return "this machine's driver shows no GPU";
  UseCudaRowOps();
  CountCudaMemory();
  return "";
}

std::string BenchDeviceName(c10::Device device) {
  cudaDeviceProp properties;
  if (device.is_cpu()) return "CPU";
  return cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess ? properties.name
                                                                             : "unknown GPU";
}

}  // namespace muster
