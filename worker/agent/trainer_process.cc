#include "worker/agent/trainer_process.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/fd.h"
#include "common/runtime/life_lock.h"
#include "common/runtime/mutex.h"
#include "worker/agent/log_sink.h"
#include "worker/agent/trainer_spawn.h"
#include "worker/core/line_buffer.h"

namespace muster {
namespace {

// The watch ends with the trainer by itself; this is for one whose lock is damaged.
constexpr absl::Duration kLifeWatchTurn = absl::Seconds(1);

}  // namespace

std::string TrainerExit::Describe() const {
  std::string text = signal != 0 ? absl::StrCat("signal ", signal, " (", strsignal(signal), ")")
                                 : absl::StrCat("exit code ", code);
  if (!error.empty()) absl::StrAppend(&text, ": ", error);
  return text;
}

class TrainerProcess::Impl {
 public:
  Impl(Options options, Callbacks callbacks)
      : options_(std::move(options)),
        callbacks_(std::move(callbacks)),
        log_({.path = options_.log_path,
              .max_bytes = options_.max_log_bytes,
              .tail_lines = options_.tail_lines,
              .tail_bytes = options_.tail_bytes}),
        log_lines_(options_.max_log_line, LineBuffer::TooLong::kSplit),
        control_lines_(options_.max_control_line, LineBuffer::TooLong::kFail) {}

  absl::Status Start() {
    RETURN_IF_ERROR(log_.Open());
    wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.open()) return ErrnoStatus(errno, "eventfd");
    ASSIGN_OR_RETURN(TrainerChannels channels, MakeTrainerChannels());
    ASSIGN_OR_RETURN(life_lock_, LifeLock::Create());
    ASSIGN_OR_RETURN(pid_, SpawnTrainer(options_, channels, life_lock_->path()));
    pidfd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    if (!pidfd_.open()) {
      const absl::Status status = ErrnoStatus(errno, "pidfd_open");
      kill(-pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      return status;
    }
    control_ = std::move(channels.control);
    log_pipe_ = std::move(channels.log);
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  void Join() {
    MUSTER_CHECK_MSG(thread_.get_id() != std::this_thread::get_id(),
                     "a TrainerProcess was destroyed inside its own callback");
    if (thread_.joinable()) thread_.join();
  }

  pid_t pid() const { return pid_; }

  absl::Status Send(absl::string_view line) {
    MutexLock lock(&mu_);
    if (ended_ || close_control_) return absl::FailedPreconditionError("the trainer has ended");
    if (outbox_.size() + line.size() > options_.max_outbox) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the trainer, pid ", pid_,
                       ", does not read its control socket: ", outbox_.size(), " bytes wait"));
    }
    outbox_.append(line.data(), line.size());
    Wake();
    return absl::OkStatus();
  }

  void Signal(int signal) {
    MutexLock lock(&mu_);
    if (!ended_) kill(pid_, signal);
  }

  void KillAfter(absl::Duration grace, absl::string_view reason) {
    MutexLock lock(&mu_);
    if (ended_) return;
    const absl::Duration at = clock_.Steady() + grace;
    if (!kill_at_ || at < *kill_at_) kill_at_ = at;
    if (kill_reason_.empty()) kill_reason_ = std::string(reason);
    Wake();
  }

  void CloseControl() {
    MutexLock lock(&mu_);
    close_control_ = true;
    Wake();
  }

 private:
  void Wake() {
    const uint64_t one = 1;
    // The counter can't overflow in practice, and a full one has woken the reader already.
    (void)!write(wake_.get(), &one, sizeof(one));
  }

  // Milliseconds for poll: until the kill is due, else forever.
  int PollTimeoutMs() {
    MutexLock lock(&mu_);
    if (!kill_at_) return -1;
    const absl::Duration left = *kill_at_ - clock_.Steady();
    if (left <= absl::ZeroDuration()) return 0;
    return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 60'000));
  }

  void KillIfDue() {
    MutexLock lock(&mu_);
    if (!kill_at_ || clock_.Steady() < *kill_at_) return;
    kill_at_.reset();
    error_ = kill_reason_;
    kill(-pid_, SIGKILL);
  }

  void Run() {
    for (bool ended = false; !ended;) {
      bool has_output = false;
      {
        MutexLock lock(&mu_);
        has_output = !outbox_.empty();
        // Half-closed: what the trainer still says on its way out is read.
        if (close_control_ && !has_output && control_.open()) shutdown(control_.get(), SHUT_WR);
      }
      // poll skips negative descriptors: a closed channel is simply not watched.
      pollfd polled[] = {{pidfd_.get(), POLLIN, 0},
                         {log_pipe_.get(), POLLIN, 0},
                         {control_.get(), short(POLLIN | (has_output ? POLLOUT : 0)), 0},
                         {wake_.get(), POLLIN, 0}};
      if (poll(polled, 4, PollTimeoutMs()) < 0 && errno != EINTR) break;
      uint64_t ignored;
      (void)!read(wake_.get(), &ignored, sizeof(ignored));
      // Bytes before the exit, so that its report has the last lines. One read a turn keeps a
      // flood of log lines from starving the rest.
      if (polled[1].revents != 0) ReadLog();
      if (polled[2].revents & (POLLIN | POLLHUP | POLLERR)) ReadControl();
      if (polled[2].revents & POLLOUT) WriteControl();
      KillIfDue();
      ended = polled[0].revents != 0;
      if (dying_.exchange(false) && !ended) TellDying();
    }
    Finish();
  }

  // It held the lock before it said its first word.
  void WatchLife() {
    if (life_watch_.joinable() || !callbacks_.on_dying) return;
    life_watch_ = std::thread([this] {
      for (;;) {
        const LifeLock::Seen seen = life_lock_->Await(kLifeWatchTurn);
        if (seen == LifeLock::Seen::kAlive && !reaped_) continue;
        if (seen == LifeLock::Seen::kDying) {
          dying_ = true;
          Wake();
        }
        return;
      }
    });
  }

  void TellDying() {
    std::optional<TrainerExit> exit = DyingWith(pid_);
    if (!exit) return;
    ReadTheRest();
    {
      MutexLock lock(&mu_);
      exit->error = error_;
    }
    exit->last_log_lines = log_.Tail();
    callbacks_.on_dying(*std::move(exit));
  }

  // False when nothing is left to read now.
  bool ReadLog() {
    if (!log_pipe_.open()) return false;
    char buffer[64 << 10];
    const ssize_t count = read(log_pipe_.get(), buffer, sizeof(buffer));
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) {
      log_pipe_.Reset();
      return false;
    }
    const absl::string_view bytes(buffer, count);
    log_.Write(bytes);
    if (std::string problem = log_.TakeProblem(); !problem.empty() && callbacks_.on_log_problem) {
      callbacks_.on_log_problem(std::move(problem));
    }
    std::vector<std::string> lines;
    log_lines_.Add(bytes, &lines);
    for (std::string& line : lines) DeliverLogLine(std::move(line));
    return true;
  }

  void DeliverLogLine(std::string line) {
    log_.AddLine(line);
    if (callbacks_.on_log_line) callbacks_.on_log_line(std::move(line));
  }

  bool ReadControl() {
    if (!control_.open()) return false;
    char buffer[64 << 10];
    const ssize_t count = read(control_.get(), buffer, sizeof(buffer));
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) {
      // The trainer closed its end: it is about to exit, or it is lost to us. Without this bound
      // it could live on unreachable.
      control_.Reset();
      KillAfter(absl::Seconds(5), "it closed its control socket and did not exit");
      return false;
    }
    WatchLife();
    std::vector<std::string> lines;
    const bool good = control_lines_.Add(absl::string_view(buffer, count), &lines);
    for (std::string& line : lines) callbacks_.on_message(std::move(line));
    if (good) return true;
    KillAfter(absl::ZeroDuration(), absl::StrCat("it sent a control line longer than ",
                                                 options_.max_control_line, " bytes"));
    KillIfDue();  // before it sees the end of file, and leaves as if nothing had been wrong
    control_.Reset();
    return false;
  }

  void WriteControl() {
    MutexLock lock(&mu_);
    if (!control_.open() || outbox_.empty()) return;
    const ssize_t count = send(control_.get(), outbox_.data(), outbox_.size(), MSG_NOSIGNAL);
    if (count > 0) outbox_.erase(0, count);
    if (count < 0 && errno != EAGAIN && errno != EINTR) {
      outbox_.clear();  // a broken pipe; the exit or the end of file tells the rest
    }
  }

  // None of its threads writes any more.
  void ReadTheRest() {
    while (ReadLog()) {
    }
    while (ReadControl()) {
    }
    if (std::string rest = log_lines_.TakeRest(); !rest.empty()) DeliverLogLine(std::move(rest));
  }

  void Finish() {
    kill(-pid_, SIGKILL);  // what the trainer may have started itself
    ReadTheRest();
    TrainerExit exit;
    {
      MutexLock lock(&mu_);
      ended_ = true;  // before the reaping: from then on the pid may be another process's
      exit.error = error_;
    }
    siginfo_t info = {};
    while (waitid(P_PID, pid_, &info, WEXITED) != 0 && errno == EINTR) {
    }
    if (info.si_code == CLD_EXITED) {
      exit.code = info.si_status;
    } else {
      exit.code = -1;
      exit.signal = info.si_status;
    }
    reaped_ = true;
    if (life_watch_.joinable()) life_watch_.join();
    exit.last_log_lines = log_.Tail();
    control_.Reset();
    log_pipe_.Reset();
    callbacks_.on_exit(std::move(exit));
  }

  const Options options_;
  const Callbacks callbacks_;
  RealClock clock_;
  pid_t pid_ = -1;
  Fd wake_, pidfd_;
  std::optional<LifeLock> life_lock_;
  std::atomic<bool> dying_{false}, reaped_{false};

  // Used by the thread only.
  Fd control_, log_pipe_;
  LogSink log_;
  LineBuffer log_lines_, control_lines_;
  std::thread life_watch_;

  Mutex mu_;
  std::string outbox_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool close_control_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Duration> kill_at_ ABSL_GUARDED_BY(mu_);
  std::string kill_reason_ ABSL_GUARDED_BY(mu_), error_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<TrainerProcess>> TrainerProcess::Start(Options options,
                                                                      Callbacks callbacks) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(callbacks));
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<TrainerProcess>(new TrainerProcess(std::move(impl)));
}

TrainerProcess::TrainerProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

TrainerProcess::~TrainerProcess() {
  impl_->KillAfter(absl::ZeroDuration(), "the agent let go of it");
  impl_->Join();
}

pid_t TrainerProcess::pid() const { return impl_->pid(); }
absl::Status TrainerProcess::Send(absl::string_view line) { return impl_->Send(line); }
void TrainerProcess::Signal(int signal) { impl_->Signal(signal); }
void TrainerProcess::KillAfter(absl::Duration grace, absl::string_view reason) {
  impl_->KillAfter(grace, reason);
}
void TrainerProcess::CloseControl() { impl_->CloseControl(); }

std::string FindTrainerProgram(absl::string_view override_path, bool cuda) {
  if (!override_path.empty()) return std::string(override_path);
  char path[4096];
  const ssize_t count = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, count > 0 ? count : 0);
  const size_t slash = self.rfind('/');
  const char* const name = cuda ? "muster-trainer-cuda" : "muster-trainer";
  if (slash == std::string::npos) return name;
  return absl::StrCat(self.substr(0, slash), "/", name);
}

}  // namespace muster
