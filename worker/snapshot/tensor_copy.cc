#include "worker/snapshot/tensor_copy.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace muster {
namespace {

// Large enough that a piece's overhead is nothing, small enough that a pause is short.
constexpr int64_t kPiece = 4 << 20;  // bytes

at::Tensor BytesOf(const at::Tensor& contiguous) { return contiguous.view({-1}).view(at::kByte); }

}  // namespace

std::shared_ptr<c10::Event> TensorCopier::MarkNow(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  auto event = std::make_shared<c10::Event>(device.type());
  event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

void TensorCopier::Copy(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& after,
                        SlotWriter& writer) {
  if (tensor.numel() == 0) return;
  if (tensor.device().is_cpu()) return CopyHost(tensor, writer);
  CopyDevice(tensor, after, writer);
}

void TensorCopier::AppendPaced(const at::Tensor& bytes, SlotWriter& writer) {
  const char* const data = static_cast<const char*>(bytes.const_data_ptr());
  for (int64_t done = 0; done < bytes.numel();) {
    const int64_t count = std::min(kPiece, bytes.numel() - done);
    pace_.Begin();
    writer.Append({data + done, static_cast<size_t>(count)});
    pace_.Pause();
    done += count;
  }
}

void TensorCopier::CopyHost(const at::Tensor& tensor, SlotWriter& writer) {
  AppendPaced(BytesOf(tensor.detach().contiguous()), writer);
}

void TensorCopier::CopyDevice(const at::Tensor& tensor, const std::shared_ptr<c10::Event>& after,
                              SlotWriter& writer) {
  const c10::Device device = tensor.device();
  if (!stream_.has_value()) {
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    for (at::Tensor& buffer : pinned_)
      buffer = at::empty({kPiece}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }
  const c10::StreamGuard guard(*stream_);
  if (after != nullptr) after->block(*stream_);
  const at::Tensor bytes = BytesOf(tensor.detach().contiguous());
  // One piece is on its way from the device while the piece before it goes to the slot.
  std::array<std::optional<c10::Event>, 2> arrived;
  int64_t sent = 0, kept = 0;
  for (int turn = 0; kept < bytes.numel(); turn ^= 1) {
    if (sent < bytes.numel()) {
      const int64_t count = std::min(kPiece, bytes.numel() - sent);
      pinned_[turn].narrow(0, 0, count).copy_(bytes.narrow(0, sent, count), /*non_blocking=*/true);
      arrived[turn].emplace(device.type());
      arrived[turn]->record(*stream_);
      sent += count;
    }
    const int other = turn ^ 1;
    if (!arrived[other].has_value()) continue;
    arrived[other]->synchronize();
    const int64_t count = std::min(kPiece, bytes.numel() - kept);
    AppendPaced(pinned_[other].narrow(0, 0, count), writer);
    kept += count;
    arrived[other].reset();
  }
}

}  // namespace muster
