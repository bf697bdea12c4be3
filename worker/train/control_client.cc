#include "worker/train/control_client.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "worker/train/epoch_store.h"

namespace muster {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);
// For a process that was told to leave before its agent's end of file.
constexpr absl::Duration kLeaveLimit = absl::Seconds(1);
// How much longer than the coordinator's own limit a reply may take.
constexpr absl::Duration kReplySlack = absl::Seconds(10);

}  // namespace

ControlClient::ControlClient(int fd, std::function<void()> on_end_of_file)
    : fd_(fd), on_end_of_file_(std::move(on_end_of_file)), writer_(fd) {
  reader_ = std::thread([this] { ReadLoop(); });
}

ControlClient::~ControlClient() {
  Flush(absl::Seconds(1));
  {
    MutexLock lock(&mu_);
    closing_ = true;
    changed_.NotifyAll();
  }
  ::shutdown(fd_, SHUT_RDWR);
  reader_.join();
  writer_.Close();
  ::close(fd_);
}

void ControlClient::Send(TrainerToAgent message) {
  std::string line = Encode(message);
  if (auto* phase = std::get_if<PhaseMessage>(&message)) {
    MutexLock lock(&mu_);
    phase_ = std::move(phase->phase);
  }
  if (!writer_.Push(std::move(line))) {
    MUSTER_LOG(kError) << "the agent does not read: dropping a report";
  }
}

void ControlClient::NoteProgress(int64_t epoch, int64_t iteration) {
  iteration_ = iteration;
  const absl::Duration now = clock_.Steady();
  if (now < next_progress_) return;
  next_progress_ = now + kProgressInterval;
  Send(ProgressMessage{.epoch = epoch, .iteration = iteration});
}

std::vector<Directive> ControlClient::TakeDirectives() {
  MutexLock lock(&mu_);
  // While an assignment waits, whoever asks still runs the epoch before it: the directives that are
  // here belong to the new one.
  if (!assignments_.empty()) return {};
  return std::exchange(directives_, {});
}

std::vector<Directive> ControlClient::WaitForDirectives(int64_t epoch) {
  MutexLock lock(&mu_);
  while (epoch_ == epoch && !aborted_ && !closing_ && directives_.empty()) changed_.Wait(&mu_);
  if (epoch_ != epoch || aborted_ || closing_) return {};
  return std::exchange(directives_, {});
}

void ControlClient::WatchOperations(std::function<std::vector<OpArrival>()> newest) {
  MutexLock lock(&watch_mu_);
  newest_operations_ = std::move(newest);
}

void ControlClient::WatchThisThread() {
  clockid_t clock{};
  if (::pthread_getcpuclockid(::pthread_self(), &clock) != 0) return;
  MutexLock lock(&mu_);
  thread_clock_ = clock;
}

void ControlClient::Answer(const ProbeMessage& probe) {
  ProbeReplyMessage reply{
      .epoch = probe.epoch, .request = probe.request, .iteration = iteration_.load()};
  {
    MutexLock lock(&mu_);
    reply.phase = phase_;
    timespec time{};
    if (thread_clock_.has_value() && ::clock_gettime(*thread_clock_, &time) == 0)
      reply.thread_cpu_ms =
          static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
  }
  {
    MutexLock lock(&watch_mu_);
    if (newest_operations_) reply.ops = newest_operations_();
  }
  Send(std::move(reply));
}

bool ControlClient::ExitSignalReceived() { return exit_signal_; }

void ControlClient::NoteExitSignal() { exit_signal_ = true; }

std::optional<AssignMessage> ControlClient::WaitForAssignment() {
  MutexLock lock(&mu_);
  while (assignments_.empty() && !shutdown_ && !closing_) changed_.Wait(&mu_);
  if (assignments_.empty()) return std::nullopt;
  AssignMessage assignment = std::move(assignments_.front());
  assignments_.pop_front();
  return assignment;
}

bool ControlClient::IsWanted() {
  MutexLock lock(&mu_);
  return !assignments_.empty() || shutdown_ || closing_;
}

absl::StatusOr<std::string> ControlClient::WaitForUniqueId(int64_t epoch, absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  MutexLock lock(&mu_);
  while (epoch_ == epoch && !aborted_ && unique_id_.empty()) {
    if (!changed_.WaitFor(&mu_, deadline - absl::Now()) && absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("no unique ID of epoch ", epoch, " within ",
                                                      absl::FormatDuration(limit),
                                                      ": has rank 0's trainer started?"));
    }
  }
  if (epoch_ != epoch || aborted_)
    return absl::AbortedError(absl::StrCat("epoch ", epoch, " is over: ", abort_reason_));
  return unique_id_;
}

std::unique_ptr<RendezvousStore> ControlClient::StoreOf(int64_t epoch) {
  return std::make_unique<EpochStore>(this, epoch);
}

void ControlClient::OnAbort(int64_t epoch, std::function<void(const std::string&)> callback) {
  std::string reason;
  {
    MutexLock lock(&mu_);
    if (epoch == epoch_) {
      on_abort_ = callback;
      if (!aborted_) return;
      reason = abort_reason_;
    } else {
      reason = absl::StrCat("epoch ", epoch_, " has begun");
    }
  }
  if (callback) callback(reason);
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ControlClient::StoreCall(
    StoreRequestMessage request, absl::Duration limit) {
  const std::string what = absl::StrCat(
      "rendezvous: ", request.op == StoreRequestMessage::Op::kSet ? "set " : "wait for ",
      request.key);
  ASSIGN_OR_RETURN(StoreReplyMessage reply, Request(std::move(request), limit, what));
  return std::move(reply.entries);
}

absl::Status ControlClient::SendTracePiece(TracePieceMessage piece, absl::Duration limit) {
  const std::string what = absl::StrCat("trace: ", piece.data.size(), " bytes");
  return Request(std::move(piece), limit, what).status();
}

template <typename Message>
absl::StatusOr<StoreReplyMessage> ControlClient::Request(Message request, absl::Duration limit,
                                                         const std::string& what) {
  const absl::Time deadline = absl::Now() + limit + kReplySlack;
  MutexLock lock(&mu_);
  if (epoch_ != request.epoch || aborted_)
    return absl::AbortedError(absl::StrCat("epoch ", request.epoch, " is over"));
  request.request = next_request_++;
  const int64_t id = request.request;
  const int64_t epoch = request.epoch;
  pending_[id] = std::nullopt;
  writer_.PushAlways(Encode(TrainerToAgent(std::move(request))));
  while (!pending_[id].has_value() && epoch_ == epoch && !aborted_ && absl::Now() < deadline) {
    changed_.WaitFor(&mu_, deadline - absl::Now());
  }
  std::optional<StoreReplyMessage> reply = std::move(pending_[id]);
  pending_.erase(id);
  if (!reply.has_value()) {
    if (epoch_ != epoch || aborted_)
      return absl::AbortedError(absl::StrCat("epoch ", epoch, " is over: ", abort_reason_));
    return absl::DeadlineExceededError(absl::StrCat("no answer to '", what, "' within ",
                                                    absl::FormatDuration(limit + kReplySlack)));
  }
  if (!reply->ok)
    return absl::Status(static_cast<absl::StatusCode>(reply->error_code), reply->error);
  return *std::move(reply);
}

void ControlClient::Flush(absl::Duration limit) { writer_.Flush(limit); }

void ControlClient::ReadLoop() {
  std::string buffer;
  char chunk[1 << 16];
  while (true) {
    const ssize_t got = ::read(fd_, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    buffer.append(chunk, static_cast<size_t>(got));
    size_t start = 0;
    for (size_t end; (end = buffer.find('\n', start)) != std::string::npos; start = end + 1) {
      auto message = DecodeAgentToTrainer(absl::string_view(buffer).substr(start, end - start));
      if (!message.ok()) {
        MUSTER_LOG(kError) << "dropping a message of the agent: " << message.status().message();
        continue;
      }
      Handle(*std::move(message));
    }
    buffer.erase(0, start);
    if (buffer.size() > kMaxControlLine) {
      MUSTER_LOG(kError) << "the agent sent a line of over " << kMaxControlLine << " bytes";
      ::shutdown(fd_, SHUT_RD);  // its sender must not wait for a reader
      break;
    }
  }
  {
    MutexLock lock(&mu_);
    // Told to leave: the main thread does so in order, unless it is stuck.
    const absl::Time due = absl::Now() + (shutdown_ ? kLeaveLimit : absl::ZeroDuration());
    while (!closing_ && absl::Now() < due) changed_.WaitFor(&mu_, due - absl::Now());
    if (closing_) return;
  }
  on_end_of_file_();
  MutexLock lock(&mu_);
  shutdown_ = true;
  changed_.NotifyAll();
}

void ControlClient::EndEpoch(const std::string& reason) {
  std::function<void(const std::string&)> callback;
  {
    MutexLock lock(&mu_);
    if (aborted_) return;
    aborted_ = true;
    abort_reason_ = reason;
    callback = on_abort_;
    changed_.NotifyAll();
  }
  if (callback) callback(reason);
}

void ControlClient::Handle(AgentToTrainer message) {
  if (auto* assign = std::get_if<AssignMessage>(&message)) {
    {
      MutexLock lock(&mu_);
      if (assign->job_id == job_id_ && assign->epoch <= epoch_) return;  // it was overtaken
    }
    EndEpoch(absl::StrCat("epoch ", assign->epoch, " begins"));
    MutexLock lock(&mu_);
    job_id_ = assign->job_id;
    epoch_ = assign->epoch;
    aborted_ = false;
    abort_reason_.clear();
    unique_id_.clear();
    directives_.clear();
    on_abort_ = nullptr;
    assignments_.clear();
    assignments_.push_back(std::move(*assign));
    changed_.NotifyAll();
    return;
  }
  if (auto* abort = std::get_if<AbortMessage>(&message)) {
    {
      MutexLock lock(&mu_);
      if (abort->epoch != epoch_) return;
    }
    EndEpoch(abort->reason);
    return;
  }
  if (auto* shutdown = std::get_if<ShutdownMessage>(&message)) {
    EndEpoch(absl::StrCat("shutdown: ", shutdown->reason));
    MutexLock lock(&mu_);
    shutdown_ = true;
    changed_.NotifyAll();
    return;
  }
  if (const auto* probe = std::get_if<ProbeMessage>(&message)) return Answer(*probe);
  MutexLock lock(&mu_);
  if (auto* unique_id = std::get_if<UniqueIdMessage>(&message)) {
    if (unique_id->epoch == epoch_) unique_id_ = unique_id->id;
  } else if (auto* directive = std::get_if<DirectiveMessage>(&message)) {
    if (directive->epoch == epoch_) directives_.push_back(directive->directive);
  } else if (auto* reply = std::get_if<StoreReplyMessage>(&message)) {
    if (auto it = pending_.find(reply->request); it != pending_.end())
      it->second = std::move(*reply);
  }
  changed_.NotifyAll();
}

}  // namespace muster
