#include "worker/agent/shared_folder_check.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "common/runtime/mutex.h"
#include "common/runtime/random_bytes.h"

namespace muster {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(100);

absl::Status WriteMark(const std::string& path, const std::string& nonce) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  // close() is where a network file system says that it could not write.
  const bool written =
      fd >= 0 && write(fd, nonce.data(), nonce.size()) == ssize_t(nonce.size()) && fsync(fd) == 0;
  const int error = errno;
  const bool closed = fd >= 0 && close(fd) == 0;
  if (written && closed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("can't write ", path, ": ", strerror(written ? errno : error)));
}

// What it holds; else why it can't be told.
std::optional<std::string> ReadMark(const std::string& path, std::string* why) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  char bytes[256];
  const ssize_t count = fd < 0 ? -1 : read(fd, bytes, sizeof(bytes));
  *why = count < 0 ? absl::StrCat(path, ": ", strerror(errno))
                   : absl::StrCat(path, " holds something else");
  if (fd >= 0) close(fd);
  if (count < 0) return std::nullopt;
  return std::string(bytes, count);
}

}  // namespace

// Shared with the reply of the rendezvous, which may come after the check's end.
class SharedFolderCheck::Impl : public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        path_(absl::StrCat(options_.folder, "/", MarkFileName(options_.job_id, options_.epoch))) {}

  void Start(std::function<void(absl::Status)> done) {
    thread_ = std::thread([this, done = std::move(done)] {
      const absl::Status status = options_.role == FolderRole::kWriter ? Write() : Read();
      if (!ending()) done(status);
    });
  }

  void End() {
    {
      MutexLock lock(&mu_);
      ending_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
    if (options_.role == FolderRole::kWriter) unlink(path_.c_str());
  }

 private:
  bool ending() {
    MutexLock lock(&mu_);
    return ending_;
  }

  absl::Status Write() {
    std::error_code error;
    std::filesystem::create_directories(options_.folder, error);
    if (error) {
      return absl::FailedPreconditionError(
          absl::StrCat("checkpoint.save=", options_.folder, " on node ", options_.node,
                       ": the folder can't be made: ", error.message()));
    }
    const FolderMark mark{.node = options_.node, .nonce = absl::BytesToHexString(RandomBytes(16))};
    RETURN_IF_ERROR(
        Annotate(WriteMark(path_, mark.nonce),
                 absl::StrCat("checkpoint.save=", options_.folder, " on node ", options_.node)));
    return AskStore({.epoch = options_.epoch,
                     .op = StoreRequestMessage::Op::kSet,
                     .key = kMarkKey,
                     .value = EncodeMark(mark)})
        .status();
  }

  absl::Status Read() {
    ASSIGN_OR_RETURN(const StoreReplyMessage reply,
                     AskStore({.epoch = options_.epoch,
                               .op = StoreRequestMessage::Op::kWaitPrefix,
                               .key = kMarkKey,
                               .count = 1}));
    const std::optional<FolderMark> mark =
        reply.entries.empty() ? std::nullopt : DecodeMark(reply.entries[0].second);
    if (!mark) return absl::InternalError("rank 0's agent set a mark that can't be read");
    const absl::Duration start = clock_.Steady();
    while (true) {
      std::string why;
      const std::optional<std::string> found = ReadMark(path_, &why);
      switch (DecideMark(*mark, found, clock_.Steady() - start, options_.look_limit)) {
        case MarkDecision::kGood:
          return absl::OkStatus();
        case MarkDecision::kNotShared:
          return NotShared(options_.folder, options_.node, *mark, why);
        case MarkDecision::kLookAgain:
          break;
      }
      MutexLock lock(&mu_);
      if (ending_) return absl::CancelledError("ending");
      changed_.WaitFor(&mu_, kLookInterval);
    }
  }

  absl::StatusOr<StoreReplyMessage> AskStore(StoreRequestMessage request) {
    request.limit_ms = absl::ToInt64Milliseconds(options_.key_limit);
    options_.ask(options_.job_id, request, [self = shared_from_this()](StoreReplyMessage reply) {
      MutexLock lock(&self->mu_);
      self->reply_ = std::move(reply);
      self->changed_.NotifyAll();
    });
    MutexLock lock(&mu_);
    while (!reply_ && !ending_) changed_.Wait(&mu_);
    if (!reply_) return absl::CancelledError("ending");
    if (reply_->ok) return *reply_;
    if (reply_->error_code == static_cast<int>(absl::StatusCode::kAborted)) {
      return absl::CancelledError(reply_->error);
    }
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint.save=", options_.folder, " on node ", options_.node,
                     ": could not compare it with rank 0's folder: ", reply_->error));
  }

  const Options options_;
  const std::string path_;
  RealClock clock_;
  Mutex mu_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<StoreReplyMessage> reply_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

SharedFolderCheck::SharedFolderCheck(Options options, std::function<void(absl::Status)> done)
    : impl_(std::make_shared<Impl>(std::move(options))) {
  impl_->Start(std::move(done));
}
SharedFolderCheck::~SharedFolderCheck() { impl_->End(); }

}  // namespace muster
