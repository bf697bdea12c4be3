// The memory through which one rank speaks to the ranks of its node: an anonymous file (memfd) that
// the rank makes, and that its peers map from a descriptor they were handed. It has no name
// anywhere, so that nothing is left when its last process dies, however it dies. Torch-free.
//
// An arena holds a bell, a directory, and one block a group (made at the group's first operation;
// members find each other's by the group's key, so a split costs no message). In a block:
//   - rounds, for collectives: kNumRounds buffers that all members read. Round k lies in buffer
//     k % kNumRounds; it may be written when all members have read round k - kNumRounds.
//   - pipes, for sends: one ring of kPipeChunks to each member and channel, read by that member.
// Every counter is written by one rank, and stands in a cache line of its own. Data is written
// before the counter that tells of it (all atomics here are sequentially consistent: the bell's
// protocol needs that of them).
// Memory: pages are taken when first written. A group takes 4 x 512 KiB for collectives and
// 4 x 256 KiB for each member and channel to which messages that long were sent.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/shm_bell.h"

namespace muster {

inline constexpr int kMaxShmRanks = 64;  // of a node: the bits of a mask
inline constexpr int kShmChannels = 2;
inline constexpr int kNumRounds = 4;
inline constexpr size_t kRoundBytes = 512 << 10;
inline constexpr int kPipeChunks = 4;
inline constexpr size_t kPipeChunkBytes = 256 << 10;
inline constexpr size_t kSignatureBytes = 120;

struct alignas(64) ShmCounter {
  std::atomic<uint64_t> value;
};

// One rank's side of one group.
class ShmBlock {
 public:
  ShmBlock(char* base, int num_members) : base_(base), num_members_(num_members) {}
  static size_t Bytes(int num_members);

  ShmCounter& arrived() const { return counters()[0]; }  // collectives that were started
  ShmCounter& written() const { return counters()[1]; }  // rounds that may be read
  ShmCounter& read() const { return counters()[2]; }     // rounds of others that may go
  // What the collective is whose first round lies here; ends with 0.
  char* signature(uint64_t round) const;
  char* round(uint64_t round) const;

  // To `member`; chunks since the beginning. `received` is written by the receiver.
  ShmCounter& sent(int member, int channel) const { return pipe(member, channel)[0]; }
  ShmCounter& received(int member, int channel) const { return pipe(member, channel)[1]; }
  // The size of the message that begins in this chunk.
  uint64_t* message_bytes(int member, int channel, uint64_t chunk) const;
  char* chunk(int member, int channel, uint64_t chunk) const;

 private:
  ShmCounter* counters() const { return reinterpret_cast<ShmCounter*>(base_); }
  ShmCounter* pipe(int member, int channel) const;

  char* base_;
  int num_members_;
};

class ShmArena {
 public:
  // UNAVAILABLE where the system refuses. `nonce` is what peers must find.
  static absl::StatusOr<std::unique_ptr<ShmArena>> Create(uint64_t nonce);
  // Maps a peer's. Takes the descriptor. UNAVAILABLE when it is not what `nonce` says.
  static absl::StatusOr<std::unique_ptr<ShmArena>> Map(int fd, uint64_t nonce);
  ~ShmArena();

  int fd() const { return fd_; }
  ShmBell& bell() const;

  // By the owner only; zeroed. RESOURCE_EXHAUSTED when it does not fit.
  absl::StatusOr<char*> MakeBlock(uint64_t key, size_t bytes);
  // Null while the owner has made none. Any rank.
  char* FindBlock(uint64_t key) const;

 private:
  struct Header;
  ShmArena(int fd, char* base) : fd_(fd), base_(base) {}
  Header& header() const;

  const int fd_;
  char* const base_;
};

}  // namespace muster
