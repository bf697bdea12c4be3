// What lies in the file of snapshots (docs/formats.md), and the order in which it is written. Every
// struct ends with the CRC-32C of the bytes before it. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "common/ckpt/crc32c.h"
#include "worker/snapshot/mapped_file.h"
#include "worker/snapshot/snapshot_slot.h"

namespace muster {

inline constexpr int64_t kSnapshotVersion = 1;
inline constexpr size_t kMostSnapshotJobId = 1024;
inline constexpr int64_t kSnapshotEntries = 256;
inline constexpr int64_t kMostSnapshotBytes = int64_t{1} << 46;  // of a slot; more is damage

struct SnapshotFileHeader {
  char magic[8];
  int64_t version;
  int64_t job_id_bytes;
  char job_id[kMostSnapshotJobId];
  uint32_t zero, crc;
};
struct SnapshotEntry {
  int64_t used;
  int64_t rank, slot;
  int64_t begin, capacity;  // bytes of the file
  int64_t reserved[2];
  uint32_t zero, crc;
};
static_assert(sizeof(SnapshotEntry) == 64 && sizeof(SnapshotFileHeader) <= kMappedPage);
struct SnapshotSlotHeader {
  char magic[8];
  int64_t rank, slot;
  int64_t iteration, epoch;
  int64_t index_bytes, content_bytes;
  uint32_t index_crc, content_crc;
  uint32_t zero, crc;
};
inline constexpr char kSnapshotFileMagic[9] = "MUSTSNAP";
inline constexpr char kSnapshotSlotMagic[9] = "MUSTSLOT";
inline constexpr int64_t kSnapshotDirectoryBegin = kMappedPage;
inline constexpr int64_t kSnapshotHeadBytes =
    kSnapshotDirectoryBegin + kSnapshotEntries * int64_t{sizeof(SnapshotEntry)};
static_assert(kSnapshotHeadBytes % kMappedPage == 0);

template <typename T>
uint32_t CrcOf(const T& value) {
  return Crc32c({reinterpret_cast<const char*>(&value), offsetof(T, crc)});
}
template <typename T>
T ReadStruct(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Stores before it are made before those after it. A process dies between two instructions and all
// that it stored until then stays, so that the compiler's order is all there is to keep.
void StoreFence();

// The header of a slot in its region, if it is whole and fits there.
std::optional<SnapshotStamp> StampOf(SnapshotSlot slot, const MappedBytes& region);
// After the content: the slot is complete with it.
void WriteStamp(SnapshotSlot slot, const SnapshotStamp& stamp, const MappedBytes& region);
// Before its content changes: the slot is empty.
void Invalidate(const MappedBytes& region);

}  // namespace muster
