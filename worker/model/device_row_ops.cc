#include "worker/model/device_row_ops.h"

namespace muster {
namespace {

const DeviceRowOps*& Slot() {
  static const DeviceRowOps* ops = nullptr;
  return ops;
}

}  // namespace

const DeviceRowOps* DeviceRowOpsFor(const at::Tensor& x,
                                    bool (DeviceRowOps::*takes)(const at::Tensor&) const) {
  const DeviceRowOps* const ops = Slot();
  return ops != nullptr && (ops->*takes)(x) ? ops : nullptr;
}

void RegisterDeviceRowOps(const DeviceRowOps* ops) { Slot() = ops; }

}  // namespace muster
