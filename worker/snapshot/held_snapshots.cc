#include "worker/snapshot/held_snapshots.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/ATen.h>

#include "common/base/status.h"
#include "common/ckpt/crc32c.h"
#include "worker/checkpoint/tensor_slice.h"
#include "worker/snapshot/snapshot_content.h"

namespace muster {

std::vector<HeldSnapshot> ListSnapshots(const SnapshotMemory& memory, int rank) {
  std::vector<HeldSnapshot> held;
  for (const auto& [slot, stamp] : memory.Complete()) {
    const auto view = memory.Map(slot);
    if (!view.ok() || Crc32c(view->index()) != stamp.index_crc) continue;
    auto read = ReadIndex(view->index(), stamp.content_bytes);
    if (!read.ok()) continue;
    SnapshotContent& content = read->content;
    held.push_back({.state = {.kind = slot.rank == rank ? HeldState::Kind::kOwnSnapshot
                                                        : HeldState::Kind::kBuddySnapshot,
                              .iteration = stamp.iteration,
                              .epoch = stamp.epoch,
                              .layout = std::move(content.layout),
                              .pieces = std::move(content.pieces),
                              .num_pieces = content.num_pieces},
                    .slot = slot});
  }
  std::stable_sort(held.begin(), held.end(), [](const HeldSnapshot& a, const HeldSnapshot& b) {
    return a.state.iteration > b.state.iteration;
  });
  return held;
}

absl::StatusOr<SnapshotContents> ReadSnapshot(const SnapshotMemory& memory, SnapshotSlot slot) {
  RETURN_IF_ERROR(memory.Verify(slot));
  ASSIGN_OR_RETURN(const SnapshotMemory::View view, memory.Map(slot));
  ASSIGN_OR_RETURN(IndexedContent read, ReadIndex(view.index(), view.stamp.content_bytes));
  SnapshotContents contents{.texts = std::move(read.content.texts)};
  for (size_t i = 0; i < read.content.tensors.size(); ++i) {
    TransferSlice& slice = read.content.tensors[i];
    const SliceBox& box = slice.box;
    const int64_t count = box.flat_end - box.flat_begin;
    const bool whole = box.flat_begin == 0 && count == NumElements(box.shape);
    at::Tensor data = at::from_blob(
        view.content + read.begins[i], whole ? box.shape : std::vector<int64_t>{count},
        [region = view.region](void*) {}, at::TensorOptions().dtype(ScalarTypeOf(slice.dtype)));
    contents.tensors.push_back({.name = std::move(slice.tensor),
                                .data = std::move(data),
                                .global_shape = std::move(slice.global_shape),
                                .global_offset = box.offset,
                                .local_shape = whole ? std::vector<int64_t>() : box.shape,
                                .flat_begin = whole ? 0 : box.flat_begin});
  }
  return contents;
}

}  // namespace muster
