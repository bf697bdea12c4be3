// Who holds which snapshot memory: at most one a worker, made at the first assignment of a rank,
// kept while its job is there, so that it outlives trainers. Pure: memories are numbers here;
// worker/agent/snapshot_memories.h makes and frees them. Not thread-safe.
//
//   none --(1)--> used --(2)--> idle --(3)--> none
//                  ^             |
//                  +-----(4)-----+
//
//   1 a rank of a job is assigned to the worker.
//   2 the trainer ended: its snapshots wait for a successor.
//   3 the job was forgotten, another job came to the worker, or nobody came within `keep`.
//   4 a new assignment of the same job, whatever its rank: the trainer knows what it finds there.
//
// A rank that moves to another worker of this agent takes its former worker's memory along, unless
// the new worker has one of this job already or a living trainer uses the former's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster {

class SnapshotMemoryBook {
 public:
  struct Options {
    absl::Duration keep = absl::Minutes(10);
  };
  explicit SnapshotMemoryBook(Options options) : options_(options) {}

  // The memory (>= 1, never used twice) of a trainer that is told to be this rank.
  int64_t Assign(const std::string& worker, const std::string& job_id, int rank);
  // The worker's trainer has ended.
  void End(const std::string& worker, absl::Duration now);
  void ForgetJob(absl::string_view job_id);
  // Frees what has waited for too long.
  void Expire(absl::Duration now);
  std::optional<absl::Duration> NextExpiry() const;
  // Memories that nobody needs any more, since the last call.
  std::vector<int64_t> TakeFreed();

 private:
  struct Memory {
    int64_t id = 0;
    std::string job_id;
    int rank = 0;                           // that used it last
    std::optional<absl::Duration> free_at;  // none: a living trainer uses it
  };
  using Memories = std::map<std::string, Memory>;  // by worker
  Memories::iterator Free(Memories::iterator memory);

  const Options options_;
  Memories memories_;
  std::vector<int64_t> freed_;
  int64_t next_id_ = 1;
};

}  // namespace muster
