#include "worker/snapshot/snapshot_layout.h"

#include <atomic>

namespace muster {

std::optional<SnapshotStamp> StampOf(SnapshotSlot slot, const MappedBytes& region) {
  const SnapshotSlotHeader header = ReadStruct<SnapshotSlotHeader>(region.data());
  if (std::memcmp(header.magic, kSnapshotSlotMagic, sizeof(header.magic)) != 0 ||
      header.crc != CrcOf(header) || header.rank != slot.rank || header.slot != slot.slot ||
      header.content_bytes < 0 || header.content_bytes > region.size() - kMappedPage ||
      header.index_bytes < 0 || header.index_bytes > header.content_bytes) {
    return std::nullopt;
  }
  return SnapshotStamp{.iteration = header.iteration,
                       .epoch = header.epoch,
                       .index_bytes = header.index_bytes,
                       .content_bytes = header.content_bytes,
                       .index_crc = header.index_crc,
                       .content_crc = header.content_crc};
}

void StoreFence() { std::atomic_signal_fence(std::memory_order_seq_cst); }

void WriteStamp(SnapshotSlot slot, const SnapshotStamp& stamp, const MappedBytes& region) {
  SnapshotSlotHeader header = {};
  std::memcpy(header.magic, kSnapshotSlotMagic, sizeof(header.magic));
  header.rank = slot.rank;
  header.slot = slot.slot;
  header.iteration = stamp.iteration;
  header.epoch = stamp.epoch;
  header.index_bytes = stamp.index_bytes;
  header.content_bytes = stamp.content_bytes;
  header.index_crc = stamp.index_crc;
  header.content_crc = stamp.content_crc;
  header.crc = CrcOf(header);
  StoreFence();
  std::memcpy(region.data(), &header, sizeof(header));
  StoreFence();
}

void Invalidate(const MappedBytes& region) {
  std::memset(region.data(), 0, sizeof(SnapshotSlotHeader));
  StoreFence();
}

}  // namespace muster
