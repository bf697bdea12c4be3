#include "worker/cuda/device_memory.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include "worker/model/tensor_memory.h"

namespace muster {
namespace {

class CudaMemory final : public DeviceMemory {
 public:
  TensorMemory Read(c10::Device device) const override {
    using c10::CachingAllocator::StatType;
    const c10::CachingDeviceAllocator::DeviceStats stats =
        c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    // Without the rounding to 512 bytes. cuBLAS's work space lies here too, once it was used.
    const auto& bytes = stats.requested_bytes[static_cast<size_t>(StatType::AGGREGATE)];
    return {bytes.current, bytes.peak};
  }
};

}  // namespace

void CountCudaMemory() {
  static const CudaMemory memory;
  RegisterDeviceMemory(&memory);
}

}  // namespace muster
