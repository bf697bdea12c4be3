#include "worker/snapshot/snapshot_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/ckpt/crc32c.h"
#include "worker/snapshot/snapshot_layout.h"

namespace muster {

SlotWriter::SlotWriter(SnapshotMemory* memory, SnapshotSlot slot,
                       std::shared_ptr<MappedBytes> region, int64_t content_bytes)
    : memory_(memory),
      slot_(slot),
      region_(std::move(region)),
      content_(region_->data() + kMappedPage),
      content_bytes_(content_bytes) {}

void SlotWriter::Advance(int64_t count) {
  MUSTER_CHECK(count >= 0 && count <= bytes_left());
  crc_ = Crc32c({next(), static_cast<size_t>(count)}, crc_);
  written_ += count;
}

void SlotWriter::Append(absl::string_view bytes) {
  constexpr size_t kPiece = 128 << 10;  // half of a small second-level cache
  while (!bytes.empty()) {
    const absl::string_view piece = bytes.substr(0, kPiece);
    MUSTER_CHECK(static_cast<int64_t>(piece.size()) <= bytes_left());
    std::memcpy(next(), piece.data(), piece.size());
    Advance(static_cast<int64_t>(piece.size()));
    bytes.remove_prefix(piece.size());
  }
}

void SlotWriter::AppendZeros(int64_t count) {
  MUSTER_CHECK(count >= 0 && count <= bytes_left());
  std::memset(next(), 0, static_cast<size_t>(count));
  Advance(count);
}

absl::Status SlotWriter::Finish(const SnapshotStamp& stamp) {
  MUSTER_CHECK(bytes_left() == 0 && stamp.content_bytes == content_bytes_);
  if (stamp.content_crc != crc_) {
    return absl::DataLossError(absl::StrCat("the snapshot of rank ", slot_.rank, " of iteration ",
                                            stamp.iteration, " was damaged on its way"));
  }
  memory_->Publish(slot_, stamp, *region_);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SnapshotMemory>> SnapshotMemory::Open(const std::string& path,
                                                                     const std::string& job_id) {
  Fd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.open()) return MappedFileError(absl::StrCat("opening ", path));
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) return MappedFileError("its size");
  // Only ever larger: whoever maps it now keeps its pages.
  if (status.st_size < kSnapshotHeadBytes)
    RETURN_IF_ERROR(ReserveInFile(file.get(), 0, kSnapshotHeadBytes));
  ASSIGN_OR_RETURN(std::shared_ptr<MappedBytes> head, MapFile(file.get(), 0, kSnapshotHeadBytes));
  std::unique_ptr<SnapshotMemory> memory(new SnapshotMemory(std::move(file), std::move(head)));
  RETURN_IF_ERROR(memory->Start(job_id));
  return memory;
}

absl::Status SnapshotMemory::Start(const std::string& job_id) {
  if (job_id.size() > kMostSnapshotJobId) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job id of ", job_id.size(), " bytes; at most ", kMostSnapshotJobId));
  }
  const MutexLock lock(&mu_);
  struct stat status = {};
  if (fstat(file_.get(), &status) != 0) return MappedFileError("its size");
  SnapshotFileHeader wanted = {};
  std::memcpy(wanted.magic, kSnapshotFileMagic, sizeof(wanted.magic));
  wanted.version = kSnapshotVersion;
  wanted.job_id_bytes = static_cast<int64_t>(job_id.size());
  std::memcpy(wanted.job_id, job_id.data(), job_id.size());
  wanted.crc = CrcOf(wanted);
  const SnapshotFileHeader found = ReadStruct<SnapshotFileHeader>(head_->data());
  if (std::memcmp(&found, &wanted, sizeof(wanted)) == 0) {
    ReadDirectory(status.st_size);
    return absl::OkStatus();
  }
  const SnapshotFileHeader empty = {};
  if (std::memcmp(&found, &empty, sizeof(empty)) != 0) {
    notes_.push_back(found.crc != CrcOf(found) ? "the snapshot memory is damaged: it is begun anew"
                     : found.version != kSnapshotVersion
                         ? "the snapshot memory has another format: it is begun anew"
                         : "the snapshot memory is of another job: it is begun anew");
  }
  // The header last: with one of this job the directory is empty or this job's. What lies behind it
  // is given back.
  std::memset(head_->data(), 0, sizeof(SnapshotFileHeader));
  StoreFence();
  std::memset(head_->data() + kSnapshotDirectoryBegin, 0,
              static_cast<size_t>(kSnapshotHeadBytes - kSnapshotDirectoryBegin));
  if (status.st_size > kSnapshotHeadBytes && ftruncate(file_.get(), kSnapshotHeadBytes) != 0)
    return MappedFileError("making it shorter");
  StoreFence();
  std::memcpy(head_->data(), &wanted, sizeof(wanted));
  end_ = kSnapshotHeadBytes;
  return absl::OkStatus();
}

void SnapshotMemory::ReadDirectory(int64_t file_bytes) {
  for (int64_t i = 0; i < kSnapshotEntries; ++i) {
    char* const at = head_->data() + kSnapshotDirectoryBegin + i * int64_t{sizeof(SnapshotEntry)};
    const SnapshotEntry entry = ReadStruct<SnapshotEntry>(at);
    if (entry.used == 0 && entry.crc == 0) continue;
    const SnapshotSlot slot{entry.rank, entry.slot};
    if (entry.crc != CrcOf(entry) || entry.used != 1 || entry.begin < kSnapshotHeadBytes ||
        entry.capacity < kMappedPage || entry.begin % kMappedPage != 0 ||
        entry.capacity > file_bytes || entry.begin > file_bytes - entry.capacity ||
        regions_.contains(slot)) {
      std::memset(at, 0, sizeof(SnapshotEntry));  // its writer died over it
      continue;
    }
    regions_[slot] = {.entry = i, .begin = entry.begin, .capacity = entry.capacity};
  }
  // Room that no entry names was taken by a writer that died before it could write one.
  std::vector<std::pair<int64_t, int64_t>> taken;  // begin, end
  for (const auto& [slot, region] : regions_)
    taken.emplace_back(region.begin, region.begin + region.capacity);
  std::sort(taken.begin(), taken.end());
  end_ = kSnapshotHeadBytes;
  for (const auto& [begin, end] : taken) {
    if (begin > end_) GiveBackToFile(file_.get(), end_, begin - end_);
    end_ = std::max(end_, end);
  }
  if (file_bytes > end_) (void)ftruncate(file_.get(), static_cast<off_t>(end_));
}

void SnapshotMemory::WriteEntry(SnapshotSlot slot, const Region& region) {
  SnapshotEntry entry = {.used = 1,
                         .rank = slot.rank,
                         .slot = slot.slot,
                         .begin = region.begin,
                         .capacity = region.capacity};
  entry.crc = CrcOf(entry);
  std::memcpy(
      head_->data() + kSnapshotDirectoryBegin + region.entry * int64_t{sizeof(SnapshotEntry)},
      &entry, sizeof(entry));
  StoreFence();
}

absl::Status SnapshotMemory::MapRegion(Region& region) const {
  if (region.mapped != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(region.mapped, MapFile(file_.get(), region.begin, region.capacity));
  return absl::OkStatus();
}

std::map<SnapshotSlot, SnapshotStamp> SnapshotMemory::Complete() const {
  const MutexLock lock(&mu_);
  std::map<SnapshotSlot, SnapshotStamp> complete;
  for (auto& [slot, region] : regions_) {
    if (!MapRegion(region).ok()) continue;
    if (const auto stamp = StampOf(slot, *region.mapped)) complete[slot] = *stamp;
  }
  return complete;
}

absl::StatusOr<SnapshotMemory::View> SnapshotMemory::Map(SnapshotSlot slot) const {
  const MutexLock lock(&mu_);
  const auto found = regions_.find(slot);
  if (found != regions_.end() && MapRegion(found->second).ok()) {
    const std::shared_ptr<MappedBytes>& mapped = found->second.mapped;
    if (const auto stamp = StampOf(slot, *mapped))
      return View{.stamp = *stamp, .region = mapped, .content = mapped->data() + kMappedPage};
  }
  return absl::NotFoundError(
      absl::StrCat("slot ", slot.slot, " of rank ", slot.rank, " holds no complete snapshot"));
}

absl::Status SnapshotMemory::Verify(SnapshotSlot slot) const {
  ASSIGN_OR_RETURN(const View view, Map(slot));
  if (Crc32c(view.index()) == view.stamp.index_crc &&
      Crc32c(view.bytes()) == view.stamp.content_crc)
    return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the snapshot of rank ", slot.rank, " of iteration ", view.stamp.iteration,
                   " is damaged: its crc32c is not the one it was kept with"));
}

void SnapshotMemory::FreeLocked(SnapshotSlot slot) {
  const auto found = regions_.find(slot);
  if (found == regions_.end()) return;
  const Region& region = found->second;
  std::memset(
      head_->data() + kSnapshotDirectoryBegin + region.entry * int64_t{sizeof(SnapshotEntry)}, 0,
      sizeof(SnapshotEntry));
  StoreFence();
  // A view that is still mapped reads zeros from here on; its address space stays.
  GiveBackToFile(file_.get(), region.begin, region.capacity);
  regions_.erase(found);
}

absl::StatusOr<SnapshotMemory::Region*> SnapshotMemory::Allocate(SnapshotSlot slot,
                                                                 int64_t capacity) {
  std::vector<bool> used(kSnapshotEntries, false);
  for (const auto& [other, region] : regions_) used[region.entry] = true;
  const auto free = std::find(used.begin(), used.end(), false);
  if (free == used.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("snapshot memory: all ", kSnapshotEntries, " slots are in use"));
  }
  Region region{.entry = free - used.begin(), .begin = end_, .capacity = capacity};
  if (absl::Status room = ReserveInFile(file_.get(), region.begin, capacity); !room.ok()) {
    (void)ftruncate(file_.get(), static_cast<off_t>(end_));  // what part of it there was
    return room;
  }
  end_ += capacity;
  RETURN_IF_ERROR(MapRegion(region));
  Invalidate(*region.mapped);
  WriteEntry(slot, region);
  return &(regions_[slot] = std::move(region));
}

absl::StatusOr<std::unique_ptr<SlotWriter>> SnapshotMemory::Begin(SnapshotSlot slot,
                                                                  int64_t content_bytes) {
  MUSTER_CHECK(content_bytes >= 0 && content_bytes <= kMostSnapshotBytes);
  const MutexLock lock(&mu_);
  const int64_t needed = kMappedPage + PagesFor(content_bytes);
  auto found = regions_.find(slot);
  if (found != regions_.end() &&
      (found->second.capacity < needed || !MapRegion(found->second).ok())) {
    FreeLocked(slot);
    found = regions_.end();
  }
  Region* region = nullptr;
  if (found != regions_.end()) {
    region = &found->second;
    Invalidate(*region->mapped);
  } else {
    // Spare room, since the index's size varies a little from snapshot to snapshot.
    constexpr int64_t kSpare = 64 << 10;
    ASSIGN_OR_RETURN(region, Allocate(slot, needed + kSpare));
  }
  return std::unique_ptr<SlotWriter>(new SlotWriter(this, slot, region->mapped, content_bytes));
}

void SnapshotMemory::Publish(SnapshotSlot slot, const SnapshotStamp& stamp, MappedBytes& region) {
  const MutexLock lock(&mu_);
  WriteStamp(slot, stamp, region);
}

void SnapshotMemory::Drop(SnapshotSlot slot) {
  const MutexLock lock(&mu_);
  const auto found = regions_.find(slot);
  if (found != regions_.end() && MapRegion(found->second).ok()) Invalidate(*found->second.mapped);
}

void SnapshotMemory::Free(SnapshotSlot slot) {
  const MutexLock lock(&mu_);
  FreeLocked(slot);
}

std::vector<SnapshotSlot> SnapshotMemory::Slots() const {
  const MutexLock lock(&mu_);
  std::vector<SnapshotSlot> slots;
  for (const auto& [slot, region] : regions_) slots.push_back(slot);
  return slots;
}

int64_t SnapshotMemory::bytes() const {
  const MutexLock lock(&mu_);
  int64_t bytes = 0;
  for (const auto& [slot, region] : regions_) bytes += region.capacity;
  return bytes;
}

}  // namespace muster
