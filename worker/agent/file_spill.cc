#include "worker/agent/file_spill.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/ckpt/crc32c.h"
#include "common/runtime/log.h"
#include "worker/agent/report_codec.h"

namespace muster {
namespace {

constexpr int64_t kHeader = 8;  // bytes before a payload

void AddU32(std::string* out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

uint32_t U32At(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

bool IsLog(const NodeReport& report) { return std::holds_alternative<NodeLogLines>(report.report); }

}  // namespace

FileSpill::FileSpill(Options options) : options_(std::move(options)) { Clear(); }

FileSpill::~FileSpill() { Clear(); }

void FileSpill::Clear() {
  for (Row* row : {&main_, &log_}) {
    for (Segment& segment : row->segments) Remove(segment);
    row->segments.clear();
    row->bytes = 0;
  }
  std::error_code ignored;  // what can't be removed is found by the next Append
  std::filesystem::remove_all(options_.folder, ignored);
  log_lines_left_out_ = 0;
}

bool FileSpill::empty() const {
  const auto has_record = [](const Segment& segment) { return !segment.records.empty(); };
  return std::none_of(main_.segments.begin(), main_.segments.end(), has_record) &&
         std::none_of(log_.segments.begin(), log_.segments.end(), has_record);
}

void FileSpill::Remove(Segment& segment) {
  if (segment.fd >= 0) close(segment.fd);
  unlink(segment.path.c_str());
}

bool FileSpill::DropLogSegment() {
  if (log_.segments.empty()) return false;
  Segment& oldest = log_.segments.front();
  for (const Record& record : oldest.records) log_lines_left_out_ += record.log_lines;
  log_.bytes -= oldest.bytes;
  Remove(oldest);
  log_.segments.pop_front();
  return true;
}

absl::Status FileSpill::Append(const std::deque<NodeReport>& reports) {
  absl::Status status = Write(reports);
  if (!status.ok() && !failed_) {
    MUSTER_LOG(kWarning) << "reports that wait for the coordinator can't be written, they stay in "
                            "memory: "
                         << status.message();
  }
  failed_ = !status.ok();
  return status;
}

absl::Status FileSpill::Write(const std::deque<NodeReport>& reports) {
  Record main{.ordinal = next_ordinal_}, log{.ordinal = next_ordinal_};
  std::string main_payload, log_payload;
  for (size_t i = 0; i < reports.size(); ++i) {
    Record& record = IsLog(reports[i]) ? log : main;
    std::string& payload = IsLog(reports[i]) ? log_payload : main_payload;
    if (record.reports++ == 0) {
      record.first = reports[i].assignment;
      record.rank = reports[i].rank;
    }
    if (IsLog(reports[i])) log.log_lines += std::get<NodeLogLines>(reports[i].report).lines.size();
    const std::string bytes = EncodeReport(reports[i]);
    AddU32(&payload, static_cast<uint32_t>(i));
    AddU32(&payload, static_cast<uint32_t>(bytes.size()));
    payload += bytes;
  }
  const int64_t main_bytes = static_cast<int64_t>(main_payload.size()) + kHeader;
  const int64_t log_bytes = static_cast<int64_t>(log_payload.size()) + kHeader;
  while (bytes() + main_bytes + log_bytes > options_.max_bytes && DropLogSegment()) {
  }
  while (log_.bytes + log_bytes > options_.max_log_bytes && DropLogSegment()) {
  }
  if (bytes() + main_bytes > options_.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.folder, " has reached its bound of ", options_.max_bytes, " bytes"));
  }
  if (main.reports > 0) {
    absl::Status status = AppendTo(main_, main, main_payload);
    while (absl::IsResourceExhausted(status) && DropLogSegment()) {
      status = AppendTo(main_, main, main_payload);
    }
    RETURN_IF_ERROR(status);
  }
  ++next_ordinal_;
  const bool log_fits = bytes() + log_bytes <= options_.max_bytes;
  if (log.reports > 0 && (!log_fits || !AppendTo(log_, log, log_payload).ok())) {
    log_lines_left_out_ += log.log_lines;
  }
  return absl::OkStatus();
}

absl::Status FileSpill::OpenSegment(Row& row) {
  std::error_code error;
  std::filesystem::create_directories(options_.folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot make ", options_.folder, ": ", error.message()));
  }
  Segment segment{.path = absl::StrCat(options_.folder, "/", row.name, "-", next_file_++)};
  segment.fd = open(segment.path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (segment.fd < 0) {
    const std::string text = absl::StrCat("cannot make ", segment.path, ": ", strerror(errno));
    return errno == ENOSPC || errno == EDQUOT ? absl::ResourceExhaustedError(text)
                                              : absl::UnavailableError(text);
  }
  row.segments.push_back(std::move(segment));
  return absl::OkStatus();
}

absl::Status FileSpill::AppendTo(Row& row, Record record, absl::string_view payload) {
  if (row.segments.empty() || row.segments.back().full ||
      row.segments.back().bytes >= options_.segment_bytes) {
    RETURN_IF_ERROR(OpenSegment(row));
  }
  Segment& segment = row.segments.back();
  std::string bytes;
  AddU32(&bytes, static_cast<uint32_t>(payload.size()));
  AddU32(&bytes, Crc32c(payload));
  bytes.append(payload.data(), payload.size());
  for (size_t done = 0; done < bytes.size();) {
    const char* const from = bytes.data() + done;
    const size_t left = bytes.size() - done;
    const ssize_t count =
        options_.write ? options_.write(segment.fd, from, left) : write(segment.fd, from, left);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count == 0 ? ENOSPC : errno;
      // What a failed record has left must not stand before the next one.
      segment.full = ftruncate(segment.fd, segment.bytes) != 0;
      const std::string text = absl::StrCat("cannot write ", segment.path, ": ", strerror(error));
      return error == ENOSPC || error == EDQUOT || error == EFBIG
                 ? absl::ResourceExhaustedError(text)
                 : absl::UnavailableError(text);
    }
    done += static_cast<size_t>(count);
  }
  record.offset = segment.bytes + kHeader;
  record.size = static_cast<int64_t>(payload.size());
  segment.bytes += static_cast<int64_t>(bytes.size());
  row.bytes += static_cast<int64_t>(bytes.size());
  segment.records.push_back(std::move(record));
  return absl::OkStatus();
}

bool FileSpill::Read(const Segment& segment, const Record& record,
                     std::vector<std::pair<uint32_t, NodeReport>>* reports) {
  std::string bytes(static_cast<size_t>(kHeader + record.size), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = pread(segment.fd, bytes.data() + done, bytes.size() - done,
                                record.offset - kHeader + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  const absl::string_view payload = absl::string_view(bytes).substr(kHeader);
  if (U32At(bytes, 0) != payload.size() || U32At(bytes, 4) != Crc32c(payload)) return false;
  for (size_t at = 0; at + kHeader <= payload.size();) {
    const uint32_t position = U32At(payload, at), size = U32At(payload, at + 4);
    std::optional<NodeReport> report = DecodeReport(payload.substr(at + kHeader, size));
    if (report) reports->emplace_back(position, *std::move(report));
    at += kHeader + size;
  }
  return true;
}

void FileSpill::TakeFrom(Row& row, int64_t ordinal, Taken* taken,
                         std::vector<std::pair<uint32_t, NodeReport>>* reports) {
  // A segment without records can only be the last one, or one whose write failed.
  while (row.segments.size() > 1 && row.segments.front().records.empty()) {
    row.bytes -= row.segments.front().bytes;
    Remove(row.segments.front());
    row.segments.pop_front();
  }
  if (row.segments.empty() || row.segments.front().records.empty()) return;
  Segment& segment = row.segments.front();
  if (segment.records.front().ordinal != ordinal) return;
  const Record record = std::move(segment.records.front());
  segment.records.pop_front();
  if (taken->first.job_id.empty()) {
    taken->first = record.first;
    taken->rank = record.rank;
  }
  if (!Read(segment, record, reports)) {
    if (record.log_lines == 0) taken->unreadable += record.reports;
    taken->log_lines_left_out += record.log_lines;
  }
  if (segment.records.empty()) {
    row.bytes -= segment.bytes;
    Remove(segment);
    row.segments.pop_front();
  }
}

ReportSpill::Taken FileSpill::TakeOldest() {
  int64_t ordinal = std::numeric_limits<int64_t>::max();
  for (const Row* row : {&main_, &log_}) {
    for (const Segment& segment : row->segments) {
      if (segment.records.empty()) continue;
      ordinal = std::min(ordinal, segment.records.front().ordinal);
      break;
    }
  }
  Taken taken{.log_lines_left_out = std::exchange(log_lines_left_out_, 0)};
  std::vector<std::pair<uint32_t, NodeReport>> reports;
  TakeFrom(main_, ordinal, &taken, &reports);
  TakeFrom(log_, ordinal, &taken, &reports);
  std::stable_sort(reports.begin(), reports.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [position, report] : reports) taken.reports.push_back(std::move(report));
  return taken;
}

}  // namespace muster
