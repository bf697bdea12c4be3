// The device that bench-train-single trains on. bench_device_cpu.cc knows the CPU; the CUDA build's
// binary links bench_device_cuda.cc instead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <c10/core/Device.h>

namespace muster {

// Once, before the first tensor on it. Returns why it cannot be used; empty: it can.
std::string UseBenchDevice(c10::Device device);
// As its driver calls it; "CPU".
std::string BenchDeviceName(c10::Device device);

// Dense bf16 and fp16 products of a device, 10^12 FLOP/s, from NVIDIA's data sheets; none where the
// name is not in the table.
std::optional<double> PeakTflops(const std::string& device_name);

}  // namespace muster
