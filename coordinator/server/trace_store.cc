#include "coordinator/server/trace_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr char kHead[] = "trace.json";

std::string HeadText(const TraceStore::Wanted& wanted) {
  const nlohmann::ordered_json head = {{"format", 1},
                                       {"directive", wanted.directive},
                                       {"epoch", wanted.epoch},
                                       {"iterations", wanted.iterations},
                                       {"world_size", wanted.world_size}};
  return head.dump() + "\n";
}

// Reads what HeadText wrote; anything else is no trace.
bool ReadHead(const std::string& path, TraceStore::Wanted* wanted) {
  std::ifstream in(path);
  const nlohmann::json head = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!head.is_object()) return false;
  const auto take = [&head](const char* name) {
    const auto found = head.find(name);
    return found != head.end() && found->is_number_integer() ? found->get<int64_t>() : -1;
  };
  wanted->directive = take("directive");
  wanted->epoch = take("epoch");
  wanted->iterations = take("iterations");
  wanted->world_size = static_cast<int>(take("world_size"));
  return take("format") == 1 && wanted->directive > 0 && wanted->epoch >= 0 &&
         wanted->world_size > 0;
}

absl::Status WriteAt(const std::string& path, absl::string_view data, int64_t at) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::InternalError(absl::StrCat(path, ": ", std::strerror(errno)));
  absl::Status status;
  while (!data.empty() && status.ok()) {
    const ssize_t n = ::pwrite(fd, data.data(), data.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) status = absl::InternalError(absl::StrCat(path, ": ", std::strerror(errno)));
    if (n <= 0) break;
    data.remove_prefix(static_cast<size_t>(n));
    at += n;
  }
  ::close(fd);
  return status;
}

}  // namespace

TraceStore::TraceStore(Options options) : options_(std::move(options)) {
  if (options_.folder.empty()) return;
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  for (const auto& entry : fs::directory_iterator(options_.folder, error)) {
    const fs::path head = entry.path() / kHead;
    std::error_code ignored;
    const auto written = fs::last_write_time(head, ignored);
    if (!ignored) found.emplace_back(written, entry.path().filename().string());
  }
  std::sort(found.begin(), found.end());
  MutexLock lock(&mu_);
  for (const auto& [time, job_id] : found) Load(job_id);
}

std::string TraceStore::PathOf(const std::string& job_id) const {
  return absl::StrCat(options_.folder, "/", job_id);
}

std::string TraceStore::PartPath(const std::string& job_id, int rank, bool whole) const {
  return absl::StrFormat("%s/rank-%05d.%s", PathOf(job_id), rank, whole ? "jsonl" : "part");
}

void TraceStore::Load(const std::string& job_id) {
  Trace trace;
  trace.info.wanted.job_id = job_id;
  if (!ReadHead(absl::StrCat(PathOf(job_id), "/", kHead), &trace.info.wanted)) return;
  for (int rank = 0; rank < trace.info.wanted.world_size; ++rank) {
    for (const bool whole : {true, false}) {
      std::error_code error;
      const auto size = fs::file_size(PartPath(job_id, rank, whole), error);
      if (error) continue;
      trace.received[rank] = static_cast<int64_t>(size);
      trace.info.bytes += static_cast<int64_t>(size);
      if (whole) trace.info.whole.insert(rank);
      break;
    }
  }
  traces_[job_id] = std::move(trace);
  by_age_.push_back(job_id);
}

void TraceStore::Remove(const std::string& job_id) {
  std::error_code ignored;
  fs::remove_all(PathOf(job_id), ignored);
  MutexLock lock(&mu_);
  traces_.erase(job_id);
  by_age_.erase(std::remove(by_age_.begin(), by_age_.end(), job_id), by_age_.end());
}

void TraceStore::MakeRoom(int64_t bytes, const std::string& for_job) {
  for (;;) {
    std::string oldest;
    {
      MutexLock lock(&mu_);
      int64_t total = bytes;
      for (const auto& [job_id, trace] : traces_) total += trace.info.bytes;
      if (total <= options_.max_total_bytes) return;
      const auto found = std::find_if(by_age_.begin(), by_age_.end(),
                                      [&](const std::string& job_id) { return job_id != for_job; });
      if (found == by_age_.end()) return;
      oldest = *found;
    }
    MUSTER_LOG(kInfo) << "removing a trace to make room job=" << oldest;
    Remove(oldest);
  }
}

absl::Status TraceStore::Expect(const Wanted& wanted) {
  if (options_.folder.empty()) {
    return absl::FailedPreconditionError(
        "this coordinator keeps no traces: it runs without a state folder");
  }
  MutexLock files(&files_mu_);
  {
    MutexLock lock(&mu_);
    const auto found = traces_.find(wanted.job_id);
    if (found != traces_.end() && found->second.info.wanted.directive == wanted.directive)
      return absl::OkStatus();
  }
  Remove(wanted.job_id);
  const std::string folder = PathOf(wanted.job_id);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return absl::InternalError(absl::StrCat(folder, ": ", error.message()));
  RETURN_IF_ERROR(WriteAt(absl::StrCat(folder, "/", kHead), HeadText(wanted), 0));
  MutexLock lock(&mu_);
  traces_[wanted.job_id].info.wanted = wanted;
  by_age_.push_back(wanted.job_id);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TraceStore::BytesBefore(const Piece& piece) {
  MutexLock lock(&mu_);
  const auto found = traces_.find(piece.job_id);
  if (found == traces_.end() || found->second.info.wanted.directive != piece.directive ||
      found->second.info.wanted.epoch != piece.epoch) {
    return absl::AbortedError(absl::StrCat("the trace of directive ", piece.directive, " of ",
                                           piece.job_id, " is not awaited (any more)"));
  }
  const Trace& trace = found->second;
  if (piece.rank < 0 || piece.rank >= trace.info.wanted.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank=", piece.rank, ": ", piece.job_id, " has ",
                                                   trace.info.wanted.world_size, " ranks"));
  }
  if (trace.info.whole.contains(piece.rank)) return -1;  // a repeat
  const auto received = trace.received.find(piece.rank);
  const int64_t here = received == trace.received.end() ? 0 : received->second;
  if (piece.offset > here) {
    return absl::FailedPreconditionError(absl::StrCat(
        "offset=", piece.offset, ": ", here, " bytes of rank ", piece.rank, "'s part are here"));
  }
  if (trace.info.bytes + static_cast<int64_t>(piece.data.size()) > options_.max_trace_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the trace is larger than ",
                                                     options_.max_trace_bytes >> 20,
                                                     " MiB: ask for fewer iterations"));
  }
  return here;
}

absl::Status TraceStore::Add(const Piece& piece) {
  MutexLock files(&files_mu_);
  const absl::StatusOr<int64_t> before = BytesBefore(piece);
  if (absl::IsResourceExhausted(before.status())) Failed(piece.job_id, before.status());
  RETURN_IF_ERROR(before.status());
  if (*before < 0) return absl::OkStatus();
  absl::string_view fresh = piece.data;
  fresh.remove_prefix(std::min<size_t>(static_cast<size_t>(*before - piece.offset), fresh.size()));
  MakeRoom(static_cast<int64_t>(fresh.size()), piece.job_id);
  const std::string path = PartPath(piece.job_id, piece.rank, /*whole=*/false);
  absl::Status written = WriteAt(path, fresh, *before);
  if (written.ok() && piece.last) {
    std::error_code error;
    fs::rename(path, PartPath(piece.job_id, piece.rank, /*whole=*/true), error);
    if (error) written = absl::InternalError(error.message());
  }
  if (!written.ok()) {
    const absl::Status failed = absl::ResourceExhaustedError(
        absl::StrCat("the coordinator cannot keep the trace: ", written.message()));
    Failed(piece.job_id, failed);
    return failed;
  }
  MutexLock lock(&mu_);
  Trace& trace = traces_[piece.job_id];
  trace.received[piece.rank] = *before + static_cast<int64_t>(fresh.size());
  trace.info.bytes += static_cast<int64_t>(fresh.size());
  if (piece.last) trace.info.whole.insert(piece.rank);
  return absl::OkStatus();
}

void TraceStore::Failed(const std::string& job_id, const absl::Status& why) {
  MutexLock lock(&mu_);
  TraceStore::Info& info = traces_[job_id].info;
  if (info.failure.empty()) info.failure = std::string(why.message());
}

absl::StatusOr<const TraceStore::Trace*> TraceStore::FindLocked(const std::string& job_id,
                                                                int64_t directive) const {
  const auto found = traces_.find(job_id);
  if (found == traces_.end()) {
    return absl::NotFoundError(absl::StrCat("no trace of ", job_id, " is kept: ask for one"));
  }
  if (directive != 0 && found->second.info.wanted.directive != directive) {
    return absl::NotFoundError(absl::StrCat(
        "the trace of directive ", directive, " of ", job_id, " is not kept: the one of directive ",
        found->second.info.wanted.directive, " has taken its place"));
  }
  return &found->second;
}

absl::StatusOr<TraceStore::Info> TraceStore::Find(const std::string& job_id,
                                                  int64_t directive) const {
  MutexLock lock(&mu_);
  ASSIGN_OR_RETURN(const Trace* const trace, FindLocked(job_id, directive));
  return trace->info;
}

absl::StatusOr<TraceStore::Part> TraceStore::Read(const std::string& job_id, int64_t directive,
                                                  int rank, int64_t offset) const {
  MutexLock files(&files_mu_);
  int64_t size = 0;
  {
    MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const Trace* const trace, FindLocked(job_id, directive));
    if (!trace->info.whole.contains(rank))
      return absl::NotFoundError(absl::StrCat("rank ", rank, "'s part of the trace is not here"));
    size = trace->received.at(rank);
  }
  if (offset < 0 || offset > size) {
    return absl::OutOfRangeError(
        absl::StrCat("offset=", offset, ": the part has ", size, " bytes"));
  }
  Part part;
  part.data.resize(static_cast<size_t>(std::min(kMaxRead, size - offset)));
  std::ifstream in(PartPath(job_id, rank, /*whole=*/true), std::ios::binary);
  in.seekg(offset);
  in.read(part.data.data(), static_cast<std::streamsize>(part.data.size()));
  if (!in) return absl::InternalError(absl::StrCat("rank ", rank, "'s part cannot be read"));
  part.end = offset + static_cast<int64_t>(part.data.size()) == size;
  return part;
}

}  // namespace muster
