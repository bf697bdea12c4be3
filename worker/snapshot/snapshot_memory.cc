#include "worker/snapshot/snapshot_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/ckpt/crc32c.h"

namespace muster {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kVersion = 1;
constexpr size_t kMostJobId = 1024;
constexpr int64_t kEntries = 256;
constexpr int64_t kMostBytes = int64_t{1} << 46;  // of a slot; more is damage

// Every struct ends with the CRC-32C of the bytes before it.
struct FileHeader {
  char magic[8];
  int64_t version;
  int64_t job_id_bytes;
  char job_id[kMostJobId];
  uint32_t zero, crc;
};
struct Entry {
  int64_t used;
  int64_t rank, slot;
  int64_t begin, capacity;  // bytes of the file
  int64_t reserved[2];
  uint32_t zero, crc;
};
static_assert(sizeof(Entry) == 64 && sizeof(FileHeader) <= kPage);
struct SlotHeader {
  char magic[8];
  int64_t rank, slot;
  int64_t iteration, epoch;
  int64_t index_bytes, content_bytes;
  uint32_t index_crc, content_crc;
  uint32_t zero, crc;
};
constexpr char kFileMagic[9] = "MUSTSNAP";
constexpr char kSlotMagic[9] = "MUSTSLOT";
constexpr int64_t kDirectoryBegin = kPage;
constexpr int64_t kHeadBytes = kDirectoryBegin + kEntries * int64_t{sizeof(Entry)};
static_assert(kHeadBytes % kPage == 0);

template <typename T>
uint32_t CrcOf(const T& value) {
  return Crc32c({reinterpret_cast<const char*>(&value), offsetof(T, crc)});
}
template <typename T>
T Read(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

int64_t PagesFor(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

absl::Status Errno(absl::string_view what) {
  const int error = errno;
  const std::string text = absl::StrCat("snapshot memory: ", what, ": ", strerror(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == ENOSPC || error == ENOMEM || error == EFBIG || error == EPERM || error == EDQUOT)
    return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

absl::StatusOr<std::shared_ptr<MappedBytes>> MapBytes(int fd, int64_t begin, int64_t size) {
  void* const at = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        static_cast<off_t>(begin));
  if (at == MAP_FAILED) return Errno(absl::StrCat("mapping ", size, " bytes"));
  return std::make_shared<MappedBytes>(static_cast<char*>(at), size);
}

// Takes the memory now: a page that is missing later would be a signal, not an error. In pieces,
// since a signal makes the kernel begin a piece again.
absl::Status Reserve(int fd, int64_t begin, int64_t size) {
  constexpr int64_t kPiece = 64 << 20;
  for (int64_t done = 0; done < size;) {
    const int64_t piece = std::min(kPiece, size - done);
    if (fallocate(fd, 0, static_cast<off_t>(begin + done), static_cast<off_t>(piece)) == 0) {
      done += piece;
    } else if (errno != EINTR) {
      return Errno(absl::StrCat("no room for ", size, " bytes"));
    }
  }
  return absl::OkStatus();
}

void GiveBack(int fd, int64_t begin, int64_t size) {
  (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                  static_cast<off_t>(size));
}

// The header of a slot in its region, if it is whole and fits there.
std::optional<SnapshotStamp> StampOf(SnapshotSlot slot, const MappedBytes& region) {
  const SlotHeader header = Read<SlotHeader>(region.data());
  if (std::memcmp(header.magic, kSlotMagic, sizeof(header.magic)) != 0 ||
      header.crc != CrcOf(header) || header.rank != slot.rank || header.slot != slot.slot ||
      header.content_bytes < 0 || header.content_bytes > region.size() - kPage ||
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

// Stores before it are made before those after it. A process dies between two instructions and all
// that it stored until then stays, so that the compiler's order is all there is to keep.
void Fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }

void Invalidate(const MappedBytes& region) {
  std::memset(region.data(), 0, sizeof(SlotHeader));
  Fence();
}

}  // namespace

MappedBytes::~MappedBytes() { munmap(data_, static_cast<size_t>(size_)); }

SlotWriter::SlotWriter(SnapshotMemory* memory, SnapshotSlot slot,
                       std::shared_ptr<MappedBytes> region, int64_t content_bytes)
    : memory_(memory),
      slot_(slot),
      region_(std::move(region)),
      content_(region_->data() + kPage),
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
  if (!file.open()) return Errno(absl::StrCat("opening ", path));
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) return Errno("its size");
  // Only ever larger: whoever maps it now keeps its pages.
  if (status.st_size < kHeadBytes) RETURN_IF_ERROR(Reserve(file.get(), 0, kHeadBytes));
  ASSIGN_OR_RETURN(std::shared_ptr<MappedBytes> head, MapBytes(file.get(), 0, kHeadBytes));
  std::unique_ptr<SnapshotMemory> memory(new SnapshotMemory(std::move(file), std::move(head)));
  RETURN_IF_ERROR(memory->Start(job_id));
  return memory;
}

absl::Status SnapshotMemory::Start(const std::string& job_id) {
  if (job_id.size() > kMostJobId) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job id of ", job_id.size(), " bytes; at most ", kMostJobId));
  }
  const MutexLock lock(&mu_);
  struct stat status = {};
  if (fstat(file_.get(), &status) != 0) return Errno("its size");
  FileHeader wanted = {};
  std::memcpy(wanted.magic, kFileMagic, sizeof(wanted.magic));
  wanted.version = kVersion;
  wanted.job_id_bytes = static_cast<int64_t>(job_id.size());
  std::memcpy(wanted.job_id, job_id.data(), job_id.size());
  wanted.crc = CrcOf(wanted);
  const FileHeader found = Read<FileHeader>(head_->data());
  if (std::memcmp(&found, &wanted, sizeof(wanted)) == 0) {
    ReadDirectory(status.st_size);
    return absl::OkStatus();
  }
  const FileHeader empty = {};
  if (std::memcmp(&found, &empty, sizeof(empty)) != 0) {
    notes_.push_back(found.crc != CrcOf(found) ? "the snapshot memory is damaged: it is begun anew"
                     : found.version != kVersion
                         ? "the snapshot memory has another format: it is begun anew"
                         : "the snapshot memory is of another job: it is begun anew");
  }
  // The header last: with one of this job the directory is empty or this job's. What lies behind it
  // is given back.
  std::memset(head_->data(), 0, sizeof(FileHeader));
  Fence();
  std::memset(head_->data() + kDirectoryBegin, 0,
              static_cast<size_t>(kHeadBytes - kDirectoryBegin));
  if (status.st_size > kHeadBytes && ftruncate(file_.get(), kHeadBytes) != 0)
    return Errno("making it shorter");
  Fence();
  std::memcpy(head_->data(), &wanted, sizeof(wanted));
  end_ = kHeadBytes;
  return absl::OkStatus();
}

void SnapshotMemory::ReadDirectory(int64_t file_bytes) {
  for (int64_t i = 0; i < kEntries; ++i) {
    char* const at = head_->data() + kDirectoryBegin + i * int64_t{sizeof(Entry)};
    const Entry entry = Read<Entry>(at);
    if (entry.used == 0 && entry.crc == 0) continue;
    const SnapshotSlot slot{entry.rank, entry.slot};
    if (entry.crc != CrcOf(entry) || entry.used != 1 || entry.begin < kHeadBytes ||
        entry.capacity < kPage || entry.begin % kPage != 0 || entry.capacity > file_bytes ||
        entry.begin > file_bytes - entry.capacity || regions_.contains(slot)) {
      std::memset(at, 0, sizeof(Entry));  // its writer died over it
      continue;
    }
    regions_[slot] = {.entry = i, .begin = entry.begin, .capacity = entry.capacity};
  }
  // Room that no entry names was taken by a writer that died before it could write one.
  std::vector<std::pair<int64_t, int64_t>> taken;  // begin, end
  for (const auto& [slot, region] : regions_)
    taken.emplace_back(region.begin, region.begin + region.capacity);
  std::sort(taken.begin(), taken.end());
  end_ = kHeadBytes;
  for (const auto& [begin, end] : taken) {
    if (begin > end_) GiveBack(file_.get(), end_, begin - end_);
    end_ = std::max(end_, end);
  }
  if (file_bytes > end_) (void)ftruncate(file_.get(), static_cast<off_t>(end_));
}

void SnapshotMemory::WriteEntry(SnapshotSlot slot, const Region& region) {
  Entry entry = {.used = 1,
                 .rank = slot.rank,
                 .slot = slot.slot,
                 .begin = region.begin,
                 .capacity = region.capacity};
  entry.crc = CrcOf(entry);
  std::memcpy(head_->data() + kDirectoryBegin + region.entry * int64_t{sizeof(Entry)}, &entry,
              sizeof(entry));
  Fence();
}

absl::Status SnapshotMemory::MapRegion(Region& region) const {
  if (region.mapped != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(region.mapped, MapBytes(file_.get(), region.begin, region.capacity));
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
      return View{.stamp = *stamp, .region = mapped, .content = mapped->data() + kPage};
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
  std::memset(head_->data() + kDirectoryBegin + region.entry * int64_t{sizeof(Entry)}, 0,
              sizeof(Entry));
  Fence();
  // A view that is still mapped reads zeros from here on; its address space stays.
  GiveBack(file_.get(), region.begin, region.capacity);
  regions_.erase(found);
}

absl::StatusOr<SnapshotMemory::Region*> SnapshotMemory::Allocate(SnapshotSlot slot,
                                                                 int64_t capacity) {
  std::vector<bool> used(kEntries, false);
  for (const auto& [other, region] : regions_) used[region.entry] = true;
  const auto free = std::find(used.begin(), used.end(), false);
  if (free == used.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("snapshot memory: all ", kEntries, " slots are in use"));
  }
  Region region{.entry = free - used.begin(), .begin = end_, .capacity = capacity};
  if (absl::Status room = Reserve(file_.get(), region.begin, capacity); !room.ok()) {
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
  MUSTER_CHECK(content_bytes >= 0 && content_bytes <= kMostBytes);
  const MutexLock lock(&mu_);
  const int64_t needed = kPage + PagesFor(content_bytes);
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
  SlotHeader header = {};
  std::memcpy(header.magic, kSlotMagic, sizeof(header.magic));
  header.rank = slot.rank;
  header.slot = slot.slot;
  header.iteration = stamp.iteration;
  header.epoch = stamp.epoch;
  header.index_bytes = stamp.index_bytes;
  header.content_bytes = stamp.content_bytes;
  header.index_crc = stamp.index_crc;
  header.content_crc = stamp.content_crc;
  header.crc = CrcOf(header);
  const MutexLock lock(&mu_);
  Fence();
  std::memcpy(region.data(), &header, sizeof(header));
  Fence();
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
