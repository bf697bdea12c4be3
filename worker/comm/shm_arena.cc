#include "worker/comm/shm_arena.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr uint64_t kMagic = 0x6d75737465723031;  // "muster01": raise it with the layout
constexpr size_t kPage = 4096;
// Addresses, not memory: the file is sparse.
constexpr size_t kArenaBytes = size_t{4} << 30;
constexpr int kMaxGroups = 1024;
constexpr size_t kPipeHead = 2 * sizeof(ShmCounter) + 64;

constexpr size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

constexpr size_t kCountersBytes = 3 * sizeof(ShmCounter);
constexpr size_t kSignatureStride = 128;
static_assert(kSignatureBytes < kSignatureStride && kPipeChunks * sizeof(uint64_t) <= 64);

size_t HeadBytes(int num_members) {
  return RoundUp(kCountersBytes + kNumRounds * kSignatureStride +
                     size_t(num_members) * kShmChannels * kPipeHead,
                 kPage);
}

absl::Status SystemError(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

void ShmBell::RingAlways() {
  rings.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void ShmBell::Sleep(uint32_t seen, absl::Duration limit) {
  const timespec wait = absl::ToTimespec(limit);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings), FUTEX_WAIT, seen, &wait, nullptr, 0);
}

size_t ShmBlock::Bytes(int num_members) {
  return HeadBytes(num_members) + kNumRounds * kRoundBytes +
         size_t(num_members) * kShmChannels * kPipeChunks * kPipeChunkBytes;
}

char* ShmBlock::signature(uint64_t round) const {
  return base_ + kCountersBytes + round % kNumRounds * kSignatureStride;
}

char* ShmBlock::round(uint64_t round) const {
  return base_ + HeadBytes(num_members_) + round % kNumRounds * kRoundBytes;
}

ShmCounter* ShmBlock::pipe(int member, int channel) const {
  return reinterpret_cast<ShmCounter*>(base_ + kCountersBytes + kNumRounds * kSignatureStride +
                                       size_t(member * kShmChannels + channel) * kPipeHead);
}

uint64_t* ShmBlock::message_bytes(int member, int channel, uint64_t chunk) const {
  return reinterpret_cast<uint64_t*>(pipe(member, channel) + 2) + chunk % kPipeChunks;
}

char* ShmBlock::chunk(int member, int channel, uint64_t chunk) const {
  const size_t pipe = size_t(member * kShmChannels + channel);
  return base_ + HeadBytes(num_members_) + kNumRounds * kRoundBytes +
         (pipe * kPipeChunks + chunk % kPipeChunks) * kPipeChunkBytes;
}

struct ShmArena::Header {
  std::atomic<uint64_t> magic;
  uint64_t nonce;
  ShmBell bell;
  size_t used;  // by the owner
  struct Entry {
    std::atomic<uint64_t> offset;  // written last; 0: free
    uint64_t key;
  } directory[kMaxGroups];
};

ShmArena::Header& ShmArena::header() const { return *reinterpret_cast<Header*>(base_); }
ShmBell& ShmArena::bell() const { return header().bell; }

absl::StatusOr<std::unique_ptr<ShmArena>> ShmArena::Create(uint64_t nonce) {
  const int fd = memfd_create("muster-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SystemError("memfd_create");
  // Nobody may shrink it under a peer that reads it.
  if (ftruncate(fd, kArenaBytes) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const absl::Status status = SystemError("sizing shared memory");
    close(fd);
    return status;
  }
  void* const base = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    const absl::Status status = SystemError("mapping shared memory");
    close(fd);
    return status;
  }
  std::unique_ptr<ShmArena> arena(new ShmArena(fd, static_cast<char*>(base)));
  Header& header = arena->header();
  header.nonce = nonce;
  header.used = RoundUp(sizeof(Header), kPage);
  header.magic.store(kMagic);
  return arena;
}

absl::StatusOr<std::unique_ptr<ShmArena>> ShmArena::Map(int fd, uint64_t nonce) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || info.st_size != static_cast<off_t>(kArenaBytes)) {
    close(fd);
    return absl::UnavailableError(absl::StrCat("a peer's shared memory has ", info.st_size,
                                               " bytes instead of ", kArenaBytes,
                                               ": all ranks must run the same version"));
  }
  void* const base = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    const absl::Status status = SystemError("mapping a peer's shared memory");
    close(fd);
    return status;
  }
  std::unique_ptr<ShmArena> arena(new ShmArena(fd, static_cast<char*>(base)));
  if (arena->header().magic.load() != kMagic || arena->header().nonce != nonce) {
    return absl::UnavailableError("what a peer sent is not the shared memory that it announced");
  }
  return arena;
}

ShmArena::~ShmArena() {
  munmap(base_, kArenaBytes);
  close(fd_);
}

absl::StatusOr<char*> ShmArena::MakeBlock(uint64_t key, size_t bytes) {
  bytes = RoundUp(bytes, kPage);
  for (Header::Entry& entry : header().directory) {
    if (entry.offset.load() != 0) continue;
    if (header().used + bytes > kArenaBytes) break;
    const size_t offset = header().used;
    header().used += bytes;
    entry.key = key;
    entry.offset.store(offset);
    return base_ + offset;
  }
  return absl::ResourceExhaustedError(
      "no room for another group in shared memory: set parallel.shared_memory to false");
}

char* ShmArena::FindBlock(uint64_t key) const {
  for (const Header::Entry& entry : header().directory) {
    const uint64_t offset = entry.offset.load();
    if (offset == 0) return nullptr;
    if (entry.key == key) return base_ + offset;
  }
  return nullptr;
}

}  // namespace muster
