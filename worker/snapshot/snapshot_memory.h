// The file in memory (a memfd that the agent holds) in which a trainer keeps snapshots, its own and
// copies of other ranks'. It outlives the trainer: a successor opens it and finds each generation
// that was complete. Layout: docs/formats.md.
//
//   [file header][directory: 256 entries][slot region][slot region]...
//   slot region: [slot header][content: index, tensors]
//
// A slot is a (rank, number) pair. Its header is made invalid before its content changes, and is
// written, with the content's CRC-32C and its own, after the content: whatever moment the writer
// dies at, a slot is either complete or nothing. Damage of any byte is found by Verify.
// No torch. Thread-safety: any thread; one writer a slot, and no reader of a slot that is written.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/runtime/fd.h"
#include "common/runtime/mutex.h"
#include "worker/snapshot/mapped_file.h"
#include "worker/snapshot/snapshot_slot.h"

namespace muster {

class SnapshotMemory;

// Fills one slot from front to back; dropped without Finish, the slot is empty.
class SlotWriter {
 public:
  // Where the next bytes belong, so that a device can copy there itself; then Advance.
  char* next() const { return content_ + written_; }
  int64_t written() const { return written_; }
  int64_t bytes_left() const { return content_bytes_ - written_; }
  // The next `count` bytes are in place: into the checksum with them. At most bytes_left().
  void Advance(int64_t count);
  // Copies, piece by piece, so that the checksum finds the bytes in the cache.
  void Append(absl::string_view bytes);
  void AppendZeros(int64_t count);
  uint32_t crc() const { return crc_; }

  // All bytes are written. DATA_LOSS: their checksum is not `stamp`'s (a copy that was damaged on
  // its way); of a stamp whose content_crc was not known, give crc().
  absl::Status Finish(const SnapshotStamp& stamp);

 private:
  friend class SnapshotMemory;
  SlotWriter(SnapshotMemory* memory, SnapshotSlot slot, std::shared_ptr<MappedBytes> region,
             int64_t content_bytes);

  SnapshotMemory* const memory_;
  const SnapshotSlot slot_;
  const std::shared_ptr<MappedBytes> region_;
  char* const content_;
  const int64_t content_bytes_;
  int64_t written_ = 0;
  uint32_t crc_ = 0;
};

class SnapshotMemory {
 public:
  // Opens the file at `path` (NOT_FOUND, UNAVAILABLE). What it holds of `job_id` is kept; of
  // another job, of another format version or damaged, it is emptied, and notes() says so.
  static absl::StatusOr<std::unique_ptr<SnapshotMemory>> Open(const std::string& path,
                                                              const std::string& job_id);

  const std::vector<std::string>& notes() const { return notes_; }

  // Slots whose header is whole, with what it says; content is not read.
  std::map<SnapshotSlot, SnapshotStamp> Complete() const;
  // DATA_LOSS naming the slot when its content is not what its header says. Reads all of it.
  absl::Status Verify(SnapshotSlot slot) const;
  // Content of a complete slot, mapped; NOT_FOUND.
  struct View {
    SnapshotStamp stamp;
    std::shared_ptr<MappedBytes> region;
    char* content = nullptr;
    absl::string_view bytes() const { return {content, static_cast<size_t>(stamp.content_bytes)}; }
    absl::string_view index() const { return {content, static_cast<size_t>(stamp.index_bytes)}; }
  };
  absl::StatusOr<View> Map(SnapshotSlot slot) const;

  // Empties the slot and makes room in it. RESOURCE_EXHAUSTED: there is no memory for it (then
  // nothing is lost but this slot). The memory must outlive the writer.
  absl::StatusOr<std::unique_ptr<SlotWriter>> Begin(SnapshotSlot slot, int64_t content_bytes);

  void Drop(SnapshotSlot slot);             // empties it, its room is kept
  void Free(SnapshotSlot slot);             // gives its room back
  std::vector<SnapshotSlot> Slots() const;  // that have room, complete or not
  // Room of all slots.
  int64_t bytes() const;

 private:
  friend class SlotWriter;
  struct Region {
    int64_t entry = 0;  // index in the directory
    int64_t begin = 0, capacity = 0;
    std::shared_ptr<MappedBytes> mapped;  // null: not yet
  };

  SnapshotMemory(Fd file, std::shared_ptr<MappedBytes> head)
      : file_(std::move(file)), head_(std::move(head)) {}
  absl::Status Start(const std::string& job_id);
  void ReadDirectory(int64_t file_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WriteEntry(SnapshotSlot slot, const Region& region) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FreeLocked(SnapshotSlot slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Region*> Allocate(SnapshotSlot slot, int64_t capacity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status MapRegion(Region& region) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Publish(SnapshotSlot slot, const SnapshotStamp& stamp, MappedBytes& region);

  const Fd file_;
  const std::shared_ptr<MappedBytes> head_;  // header and directory
  std::vector<std::string> notes_;
  mutable Mutex mu_;
  mutable std::map<SnapshotSlot, Region> regions_ ABSL_GUARDED_BY(mu_);
  int64_t end_ ABSL_GUARDED_BY(mu_) = 0;  // of the file
};

}  // namespace muster
