#include "benchmarks/train_single/bench_device.h"

namespace muster {
namespace {

struct Peak {
  const char* name;  // a part of the driver's name, the longer ones first
  double tflops;
};
constexpr Peak kPeaks[] = {
    {"H100 NVL", 835}, {"H100 PCIe", 756}, {"H100", 989}, {"H200", 989}, {"A100", 312}};

}  // namespace

std::optional<double> PeakTflops(const std::string& device_name) {
  for (const Peak& peak : kPeaks)
    if (device_name.find(peak.name) != std::string::npos) return peak.tflops;
  return std::nullopt;
}

}  // namespace muster
