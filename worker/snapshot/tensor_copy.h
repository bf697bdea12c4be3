// Bytes of tensors into a slot of the snapshot memory. On a GPU: on a stream of its own, through
// two pinned buffers, so that the device goes on computing. One thread, but for MarkNow.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "worker/snapshot/copy_pace.h"
#include "worker/snapshot/snapshot_memory.h"

namespace muster {

class TensorCopier {
 public:
  explicit TensorCopier(CopyPace& pace) : pace_(pace) {}

  // On the thread that computes: what it has given the device to do so far is what a copy that
  // begins after the event sees. Null for the CPU.
  static std::shared_ptr<c10::Event> MarkNow(c10::Device device);

  // The tensor's elements, in row-major order. When it returns the tensor may change.
  void Copy(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& after, SlotWriter& writer);

 private:
  void CopyHost(const at::Tensor& tensor, SlotWriter& writer);
  void CopyDevice(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& after,
                  SlotWriter& writer);
  void AppendPaced(const at::Tensor& bytes, SlotWriter& writer);

  CopyPace& pace_;
  // Made at the first tensor of a device, and kept.
  std::optional<c10::Stream> stream_;
  std::array<at::Tensor, 2> pinned_;
};

}  // namespace muster
