// ReportSpill in the agent's state folder: segment files that are only appended to, every record
// with its checksum, deleted as soon as all of it was taken. Two rows of segments, so that log
// lines can give way (the oldest first) while everything else stays. Not thread-safe.
//
//   segment = records; record = size (u32), CRC-32C (u32), payload; payload = reports, each
//   position among those appended together (u32), size (u32), the bytes of report_codec.h.
//   Numbers are little-endian.
//
// Nothing here outlives its agent: a new process is a new incarnation, whose reports start at 1.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/core/report_spill.h"

namespace muster {

class FileSpill final : public ReportSpill {
 public:
  struct Options {
    std::string folder;                // of this class alone; made when it is needed
    int64_t max_bytes = 256 << 20;     // of all files; log lines give way first
    int64_t max_log_bytes = 32 << 20;  // of those with log lines
    int64_t segment_bytes = 4 << 20;   // then the next file begins
    std::function<ssize_t(int fd, const void* bytes, size_t count)> write;  // write(2); for tests
  };
  // Removes what a former process left.
  explicit FileSpill(Options options);
  ~FileSpill() override;

  absl::Status Append(const std::deque<NodeReport>& reports) override;
  Taken TakeOldest() override;
  bool empty() const override;
  void Clear() override;

  int64_t bytes() const { return main_.bytes + log_.bytes; }

 private:
  struct Record {
    int64_t ordinal = 0;  // of the Append
    int64_t offset = 0;
    int64_t size = 0;  // of the payload
    size_t reports = 0, log_lines = 0;
    AssignmentKey first;
    int rank = 0;
  };
  struct Segment {
    std::string path;
    int fd = -1;
    int64_t bytes = 0;
    bool full = false;           // nothing more is to be appended
    std::deque<Record> records;  // not taken yet
  };
  struct Row {
    const char* name;
    std::deque<Segment> segments;  // each but the last holds a record
    int64_t bytes = 0;
  };

  absl::Status Write(const std::deque<NodeReport>& reports);
  absl::Status AppendTo(Row& row, Record record, absl::string_view payload);
  absl::Status OpenSegment(Row& row);
  void Remove(Segment& segment);
  // Frees the oldest segment with log lines; false when there is none.
  bool DropLogSegment();
  // Adds the record's reports with their positions; false when it is damaged.
  static bool Read(const Segment& segment, const Record& record,
                   std::vector<std::pair<uint32_t, NodeReport>>* reports);
  void TakeFrom(Row& row, int64_t ordinal, Taken* taken,
                std::vector<std::pair<uint32_t, NodeReport>>* reports);

  const Options options_;
  Row main_{"reports"}, log_{"log-lines"};
  int64_t next_ordinal_ = 1, next_file_ = 1;
  size_t log_lines_left_out_ = 0;  // not said yet
  bool failed_ = false;            // the last Append, and that was logged
};

}  // namespace muster
