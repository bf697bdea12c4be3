// The traces of steps that agents bring, as files: the newest trace of each job, a file a rank.
//
//   FOLDER/JOB/trace.json        what was asked for
//   FOLDER/JOB/rank-00003.part   being received
//   FOLDER/JOB/rank-00003.jsonl  whole
//
// The files stay when the coordinator is started again, and an agent goes on where it was. A job's
// trace may take so many bytes, all together so many: the oldest traces go first. Thread-safe; all
// but Find read or write files.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/runtime/mutex.h"

namespace muster {

class TraceStore {
 public:
  struct Options {
    std::string folder;                      // empty: none, then no trace can be asked for
    int64_t max_trace_bytes = 512ll << 20;   // of one trace
    int64_t max_total_bytes = 2048ll << 20;  // of all
  };
  static constexpr int64_t kMaxRead = 512 << 10;  // bytes of one Read

  // Takes up what is in the folder.
  explicit TraceStore(Options options);

  struct Wanted {
    std::string job_id;
    int64_t directive = 0, epoch = 0, iterations = 0;
    int world_size = 1;
  };
  // The job's trace from now on; what there was of an older one is removed. A repeat changes
  // nothing. FAILED_PRECONDITION without a folder; INTERNAL when the folder cannot be written.
  absl::Status Expect(const Wanted& wanted);

  struct Piece {
    std::string job_id;
    int64_t directive = 0, epoch = 0;
    int rank = 0;
    int64_t offset = 0;
    absl::string_view data;
    bool last = false;
  };
  // ABORTED: the job's trace is not this one; INVALID_ARGUMENT: no such rank; FAILED_PRECONDITION:
  // bytes before it are missing; RESOURCE_EXHAUSTED: too large, or it could not be written (then
  // the trace has failed). What is there already is not written again.
  absl::Status Add(const Piece& piece);

  struct Info {
    Wanted wanted;
    std::set<int> whole;  // ranks
    int64_t bytes = 0;
    std::string failure;  // empty: none
    bool complete() const { return static_cast<int>(whole.size()) == wanted.world_size; }
  };
  // `directive` 0: whichever is kept. NOT_FOUND.
  absl::StatusOr<Info> Find(const std::string& job_id, int64_t directive) const;

  struct Part {
    std::string data;
    bool end = false;
  };
  // NOT_FOUND; OUT_OF_RANGE.
  absl::StatusOr<Part> Read(const std::string& job_id, int64_t directive, int rank,
                            int64_t offset) const;

 private:
  struct Trace {
    Info info;
    std::map<int, int64_t> received;  // bytes, by rank
  };
  std::string PathOf(const std::string& job_id) const;
  std::string PartPath(const std::string& job_id, int rank, bool whole) const;
  void Load(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(files_mu_);
  void MakeRoom(int64_t bytes, const std::string& for_job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(files_mu_);
  // Of the rank's part, received; -1: the part is whole. Errors: Add's.
  absl::StatusOr<int64_t> BytesBefore(const Piece& piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(files_mu_);
  void Failed(const std::string& job_id, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(files_mu_);
  absl::StatusOr<const Trace*> FindLocked(const std::string& job_id, int64_t directive) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable Mutex files_mu_;  // held while files are read and written; taken before mu_
  mutable Mutex mu_;        // never held over a file, so that Find waits for none
  std::map<std::string, Trace> traces_ ABSL_GUARDED_BY(mu_);  // by job
  std::vector<std::string> by_age_ ABSL_GUARDED_BY(mu_);      // jobs, the oldest trace first
};

}  // namespace muster
