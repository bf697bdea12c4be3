#include "worker/model/device_row_ops.h"

namespace muster {
namespace {

const DeviceRowOps*& Slot() {
  static const DeviceRowOps* ops = nullptr;
  return ops;
}

}  // namespace

const DeviceRowOps* RegisteredDeviceRowOps() { return Slot(); }

void RegisterDeviceRowOps(const DeviceRowOps* ops) { Slot() = ops; }

}  // namespace muster
