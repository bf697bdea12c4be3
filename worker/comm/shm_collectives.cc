#include "worker/comm/shm_collectives.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/comm/shm_arena.h"

namespace muster {
namespace {

// Below this, everybody reads everything: one exchange instead of two, for more bytes.
constexpr int64_t kOneExchangeBytes = 32 << 10;

int64_t NumChunks(int64_t total, int64_t chunk) { return (total + chunk - 1) / chunk; }

// How many elements of each member's slice travel in a round: whole cache lines.
int64_t PieceElements(int64_t slice, int size, size_t element_size) {
  const int64_t line = std::max<int64_t>(1, 64 / element_size);
  const int64_t most =
      std::max(line, static_cast<int64_t>(kRoundBytes / size / element_size) / line * line);
  return std::max<int64_t>(1, std::min(most, NumChunks(slice, line) * line));
}

void Copy(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// A part of a tensor, in elements.
struct Range {
  int64_t begin, end;
  int64_t count() const { return std::max<int64_t>(0, end - begin); }
};

class SmallAllReduce final : public ShmCollective {
 public:
  SmallAllReduce(int rank, int size, char* data, const ShmReduction& reduction)
      : ShmCollective(rank, size), data_(data), reduction_(reduction) {
    AddPipelined(0, 0, 1);
  }
  void Write(const ShmStep&, char* round) override {
    Copy(round, data_, reduction_.count * reduction_.element_size);
  }
  absl::Status Read(const ShmStep&, const std::vector<const char*>& rounds) override {
    const void* parts[kMaxShmRanks];
    for (int m = 0; m < size_; ++m) parts[m] = m == rank_ ? data_ : rounds[m];
    reduction_.reduce(data_, parts, size_, reduction_.count);
    return absl::OkStatus();
  }

 private:
  char* const data_;
  const ShmReduction reduction_;
};

// Each member owns a slice of every chunk: it gets the others' data for it (scatter), adds, and
// hands the result to all (gather).
class AllReduce final : public ShmCollective {
 public:
  AllReduce(int rank, int size, char* data, const ShmReduction& reduction)
      : ShmCollective(rank, size),
        data_(data),
        reduction_(reduction),
        piece_(PieceElements(NumChunks(reduction.count, size), size, reduction.element_size)) {
    const int64_t num_chunks = NumChunks(reduction.count, piece_ * size);
    Add(ShmStep::kWrite, kScatter, 0);
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      if (chunk + 1 < num_chunks) Add(ShmStep::kWrite, kScatter, chunk + 1);
      Add(ShmStep::kRead, kScatter, chunk);
      Add(ShmStep::kWrite, kGather, chunk);
      if (chunk > 0) Add(ShmStep::kRead, kGather, chunk - 1);
    }
    Add(ShmStep::kRead, kGather, num_chunks - 1);
  }

  void Write(const ShmStep& step, char* round) override {
    if (step.phase == kGather) {
      const Range mine = Slice(step.chunk, rank_);
      Copy(round, At(data_, mine.begin), Bytes(mine.count()));
      return;
    }
    for (int m = 0; m < size_; ++m) {
      const Range theirs = Slice(step.chunk, m);
      if (m != rank_) Copy(At(round, m * piece_), At(data_, theirs.begin), Bytes(theirs.count()));
    }
  }

  absl::Status Read(const ShmStep& step, const std::vector<const char*>& rounds) override {
    if (step.phase == kGather) {
      for (int i = 1; i < size_; ++i) {
        const int m = (rank_ + i) % size_;
        const Range theirs = Slice(step.chunk, m);
        Copy(At(data_, theirs.begin), rounds[m], Bytes(theirs.count()));
      }
      return absl::OkStatus();
    }
    const Range mine = Slice(step.chunk, rank_);
    if (mine.count() == 0) return absl::OkStatus();
    char* const own = At(data_, mine.begin);
    const void* parts[kMaxShmRanks];
    for (int m = 0; m < size_; ++m) {
      parts[m] = m == rank_ ? own : rounds[m] + Bytes(rank_ * piece_);
    }
    reduction_.reduce(own, parts, size_, mine.count());
    return absl::OkStatus();
  }

 private:
  enum Phase { kScatter, kGather };
  int64_t Bytes(int64_t elements) const { return elements * reduction_.element_size; }
  char* At(char* base, int64_t element) const { return base + Bytes(element); }
  Range Slice(int64_t chunk, int member) const {
    const int64_t begin = std::min(reduction_.count, (chunk * size_ + member) * piece_);
    return {begin, std::min(reduction_.count, begin + piece_)};
  }

  char* const data_;
  const ShmReduction reduction_;
  const int64_t piece_;  // elements of a slice in a chunk
};

class ReduceScatter final : public ShmCollective {
 public:
  ReduceScatter(int rank, int size, char* output, const char* input, const ShmReduction& reduction)
      : ShmCollective(rank, size),
        output_(output),
        input_(input),
        reduction_(reduction),
        piece_(PieceElements(reduction.count, size, reduction.element_size)) {
    AddPipelined(0, 0, NumChunks(reduction.count, piece_));
  }
  void Write(const ShmStep& step, char* round) override {
    const Range part = Part(step.chunk);
    for (int m = 0; m < size_; ++m) {
      if (m == rank_) continue;
      Copy(round + Bytes(m * piece_), input_ + Bytes(m * reduction_.count + part.begin),
           Bytes(part.count()));
    }
  }
  absl::Status Read(const ShmStep& step, const std::vector<const char*>& rounds) override {
    const Range part = Part(step.chunk);
    const void* parts[kMaxShmRanks];
    for (int m = 0; m < size_; ++m) {
      parts[m] = m == rank_ ? input_ + Bytes(rank_ * reduction_.count + part.begin)
                            : rounds[m] + Bytes(rank_ * piece_);
    }
    reduction_.reduce(output_ + Bytes(part.begin), parts, size_, part.count());
    return absl::OkStatus();
  }

 private:
  int64_t Bytes(int64_t elements) const { return elements * reduction_.element_size; }
  Range Part(int64_t chunk) const {
    return {chunk * piece_, std::min(reduction_.count, (chunk + 1) * piece_)};
  }

  char* const output_;
  const char* const input_;
  const ShmReduction reduction_;
  const int64_t piece_;
};

class AllGather final : public ShmCollective {
 public:
  AllGather(int rank, int size, char* output, const char* input, int64_t bytes)
      : ShmCollective(rank, size), output_(output), input_(input), bytes_(bytes) {
    AddPipelined(0, 0, NumChunks(bytes, kRoundBytes));
  }
  void Write(const ShmStep& step, char* round) override {
    const Range part = Part(step.chunk);
    Copy(round, input_ + part.begin, part.count());
    Copy(output_ + rank_ * bytes_ + part.begin, input_ + part.begin, part.count());
  }
  absl::Status Read(const ShmStep& step, const std::vector<const char*>& rounds) override {
    const Range part = Part(step.chunk);
    for (int i = 1; i < size_; ++i) {
      const int m = (rank_ + i) % size_;
      Copy(output_ + m * bytes_ + part.begin, rounds[m], part.count());
    }
    return absl::OkStatus();
  }

 private:
  Range Part(int64_t chunk) const {
    const int64_t begin = chunk * static_cast<int64_t>(kRoundBytes);
    return {begin, std::min<int64_t>(bytes_, begin + kRoundBytes)};
  }

  char* const output_;
  const char* const input_;
  const int64_t bytes_;
};

// The first round begins with what each sends to whom: the longest of all pairs
// gives the number of rounds. The first bytes travel in the same round.
class AllToAll final : public ShmCollective {
 public:
  AllToAll(int rank, int size, char* output, const char* input, std::vector<int64_t> received,
           std::vector<int64_t> sent)
      : ShmCollective(rank, size),
        output_(output),
        input_(input),
        received_(std::move(received)),
        sent_(std::move(sent)),
        piece_((kRoundBytes - kCountsBytes) / size / 64 * 64) {
    AddPipelined(0, 0, 1);
  }

  void Write(const ShmStep& step, char* round) override {
    if (step.chunk == 0) std::memcpy(round, sent_.data(), size_ * sizeof(int64_t));
    for (int m = 0; m < size_; ++m) {
      const Range part = Part(step.chunk, sent_[m]);
      if (m == rank_) continue;
      Copy(round + kCountsBytes + m * piece_, input_ + Before(sent_, m) + part.begin, part.count());
    }
  }

  absl::Status Read(const ShmStep& step, const std::vector<const char*>& rounds) override {
    if (step.chunk == 0) RETURN_IF_ERROR(ReadCounts(rounds));
    for (int i = 1; i < size_; ++i) {
      const int m = (rank_ + i) % size_;
      const Range part = Part(step.chunk, received_[m]);
      Copy(output_ + Before(received_, m) + part.begin, rounds[m] + kCountsBytes + rank_ * piece_,
           part.count());
    }
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kCountsBytes = kMaxShmRanks * sizeof(int64_t);

  absl::Status ReadCounts(const std::vector<const char*>& rounds) {
    int64_t longest = 0;
    for (int m = 0; m < size_; ++m) {
      std::vector<int64_t> theirs(sent_);
      if (m != rank_) std::memcpy(theirs.data(), rounds[m], size_ * sizeof(int64_t));
      if (theirs[rank_] != received_[m]) {
        return absl::InvalidArgumentError(absl::StrCat("member ", m, " sends ", theirs[rank_],
                                                       " bytes to member ", rank_,
                                                       ", which expects ", received_[m]));
      }
      theirs[m] = 0;  // stays at home
      longest = std::max(longest, *std::max_element(theirs.begin(), theirs.end()));
    }
    Copy(output_ + Before(received_, rank_), input_ + Before(sent_, rank_), sent_[rank_]);
    AddPipelined(0, 1, NumChunks(longest, piece_));
    return absl::OkStatus();
  }

  static int64_t Before(const std::vector<int64_t>& counts, int member) {
    return std::accumulate(counts.begin(), counts.begin() + member, int64_t{0});
  }
  Range Part(int64_t chunk, int64_t bytes) const {
    return {std::min(bytes, chunk * piece_), std::min(bytes, (chunk + 1) * piece_)};
  }

  char* const output_;
  const char* const input_;
  const std::vector<int64_t> received_, sent_;
  const int64_t piece_;  // bytes of a pair in a round
};

class Broadcast final : public ShmCollective {
 public:
  Broadcast(int rank, int size, char* data, int64_t bytes, int root)
      : ShmCollective(rank, size), data_(data), bytes_(bytes), root_(root) {
    AddPipelined(0, 0, NumChunks(bytes, kRoundBytes));
  }
  bool ReadsFrom(int member) const override { return member == root_ && rank_ != root_; }
  void Write(const ShmStep& step, char* round) override {
    if (rank_ == root_) Copy(round, data_ + Begin(step), Bytes(step));
  }
  absl::Status Read(const ShmStep& step, const std::vector<const char*>& rounds) override {
    if (rank_ != root_) Copy(data_ + Begin(step), rounds[root_], Bytes(step));
    return absl::OkStatus();
  }

 private:
  static int64_t Begin(const ShmStep& step) { return step.chunk * kRoundBytes; }
  int64_t Bytes(const ShmStep& step) const {
    return std::min<int64_t>(kRoundBytes, bytes_ - Begin(step));
  }

  char* const data_;
  const int64_t bytes_;
  const int root_;
};

class Barrier final : public ShmCollective {
 public:
  Barrier(int rank, int size) : ShmCollective(rank, size) { AddPipelined(0, 0, 1); }
  void Write(const ShmStep&, char*) override {}
  absl::Status Read(const ShmStep&, const std::vector<const char*>&) override {
    return absl::OkStatus();
  }
};

}  // namespace

void ShmCollective::AddPipelined(int phase, int64_t begin, int64_t end) {
  if (begin < end) Add(ShmStep::kWrite, phase, begin);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    if (chunk + 1 < end) Add(ShmStep::kWrite, phase, chunk + 1);
    Add(ShmStep::kRead, phase, chunk);
  }
}

ShmCollectivePtr MakeShmAllReduce(int rank, int size, char* data, const ShmReduction& reduction) {
  if (reduction.count * static_cast<int64_t>(reduction.element_size) <= kOneExchangeBytes) {
    return std::make_unique<SmallAllReduce>(rank, size, data, reduction);
  }
  return std::make_unique<AllReduce>(rank, size, data, reduction);
}

ShmCollectivePtr MakeShmReduceScatter(int rank, int size, char* output, const char* input,
                                      const ShmReduction& reduction) {
  return std::make_unique<ReduceScatter>(rank, size, output, input, reduction);
}

ShmCollectivePtr MakeShmAllGather(int rank, int size, char* output, const char* input,
                                  int64_t bytes) {
  return std::make_unique<AllGather>(rank, size, output, input, bytes);
}

ShmCollectivePtr MakeShmAllToAll(int rank, int size, char* output, const char* input,
                                 std::vector<int64_t> received, std::vector<int64_t> sent) {
  return std::make_unique<AllToAll>(rank, size, output, input, std::move(received),
                                    std::move(sent));
}

ShmCollectivePtr MakeShmBroadcast(int rank, int size, char* data, int64_t bytes, int root) {
  return std::make_unique<Broadcast>(rank, size, data, bytes, root);
}

ShmCollectivePtr MakeShmBarrier(int rank, int size) {
  return std::make_unique<Barrier>(rank, size);
}

}  // namespace muster
