#include "benchmarks/train_single/bench_device.h"

namespace muster {

std::string UseBenchDevice(c10::Device device) {
  return device.is_cpu() ? "" : "built without CUDA: take bench-train-single-cuda";
}

std::string BenchDeviceName(c10::Device) { return "CPU"; }

}  // namespace muster
