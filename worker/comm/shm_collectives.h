// What each collective writes for its peers and reads from them, as a list of steps: the same list
// on all members, in which every write of a round is told from every read. shm_group.h carries
// steps out; nothing here waits. Torch-free; memory is the caller's, who keeps it.
//
// A write step fills one round of the own block, a read step works on the same round of all
// members. Writes run ahead of reads by at most three rounds (fewer than the kNumRounds buffers),
// so that copying overlaps with what the peers do and nobody waits in a circle: the member that is
// furthest back finds everything that its next step needs.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/comm/shm_reduce.h"

namespace muster {

struct ShmStep {
  enum Kind { kWrite, kRead } kind;
  int phase;      // what the collective means by it
  int64_t chunk;  // which part of the tensor
};

class ShmCollective {
 public:
  ShmCollective(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~ShmCollective() = default;

  // Taken from the front. A read step may add more.
  std::deque<ShmStep> steps;

  // Members whose rounds the read steps need; never itself.
  virtual bool ReadsFrom(int member) const { return member != rank_; }
  virtual void Write(const ShmStep& step, char* round) = 0;
  // INVALID_ARGUMENT when members do not agree.
  virtual absl::Status Read(const ShmStep& step, const std::vector<const char*>& rounds) = 0;

 protected:
  void Add(ShmStep::Kind kind, int phase, int64_t chunk) { steps.push_back({kind, phase, chunk}); }
  // Chunk by chunk: written one ahead of being read.
  void AddPipelined(int phase, int64_t begin, int64_t end);

  const int rank_, size_;
};
using ShmCollectivePtr = std::unique_ptr<ShmCollective>;

// What is reduced: `count` elements of `element_size` bytes.
struct ShmReduction {
  ShmReduceFn reduce;
  size_t element_size;
  int64_t count;
};

// rank and size: this member's place in the group. All pointers may be null where nothing is moved.
ShmCollectivePtr MakeShmAllReduce(int rank, int size, char* data, const ShmReduction& reduction);
// `reduction.count` is the output's.
ShmCollectivePtr MakeShmReduceScatter(int rank, int size, char* output, const char* input,
                                      const ShmReduction& reduction);
// `bytes` is the input's.
ShmCollectivePtr MakeShmAllGather(int rank, int size, char* output, const char* input,
                                  int64_t bytes);
// Bytes to and from each member, whose data lie one after the other.
ShmCollectivePtr MakeShmAllToAll(int rank, int size, char* output, const char* input,
                                 std::vector<int64_t> received, std::vector<int64_t> sent);
ShmCollectivePtr MakeShmBroadcast(int rank, int size, char* data, int64_t bytes, int root);
ShmCollectivePtr MakeShmBarrier(int rank, int size);

}  // namespace muster
