#include "worker/agent/trainer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "common/runtime/mutex.h"
#include "worker/agent/machine_cores.h"
#include "worker/core/line_buffer.h"

namespace muster {
namespace {

constexpr int kChildControlFd = 3;

// A file descriptor that closes itself.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~Fd() { Reset(); }
  void Reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

absl::Status ErrnoStatus(int error, absl::string_view what) {
  const std::string text = absl::StrCat(what, ": ", strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case ENOEXEC:
      return absl::PermissionDeniedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

// Moves a descriptor above the ones that the child's dup2 calls overwrite.
absl::StatusOr<Fd> MoveUp(int fd) {
  Fd low(fd);
  Fd high(fcntl(fd, F_DUPFD_CLOEXEC, 10));
  if (!high.open()) return ErrnoStatus(errno, "fcntl(F_DUPFD_CLOEXEC)");
  return high;
}

struct Channels {
  Fd control, control_child;
  Fd log, log_child;
};

absl::StatusOr<Channels> MakeChannels() {
  Channels channels;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  channels.control = Fd(pair[0]);
  ASSIGN_OR_RETURN(channels.control_child, MoveUp(pair[1]));
  if (pipe2(pair, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2");
  channels.log = Fd(pair[0]);
  ASSIGN_OR_RETURN(channels.log_child, MoveUp(pair[1]));
  for (int fd : {channels.control.get(), channels.log.get()}) {
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus(errno, "fcntl(O_NONBLOCK)");
  }
  return channels;
}

std::vector<std::string> MergedEnvironment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!added.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : added) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

absl::StatusOr<pid_t> Spawn(const TrainerProcess::Options& options, const Channels& channels) {
  std::vector<std::string> arguments = {options.program};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  arguments.push_back("--control-fd");
  arguments.push_back(absl::StrCat(kChildControlFd));
  std::vector<std::string> environment = MergedEnvironment(options.env);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, channels.log_child.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, channels.log_child.get(), 2);
  posix_spawn_file_actions_adddup2(&actions, channels.control_child.get(), kChildControlFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, kChildControlFd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  int error = 0;
  {
    const ScopedBinding binding(options.cpus, options.memory_node);
    if (!binding.problem().empty()) {
      // Cores may have been taken from this agent since its start. Slower, not wrong.
      MUSTER_LOG(kWarning) << "the trainer is not bound to its cores: " << binding.problem();
    }
    error = posix_spawn(&pid, options.program.c_str(), &actions, &attributes,
                        Pointers(arguments).data(), Pointers(environment).data());
  }
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return ErrnoStatus(error, absl::StrCat("cannot start the trainer ", options.program));
  }
  return pid;
}

// The log file with one older generation, and the last lines in memory.
class LogSink {
 public:
  explicit LogSink(const TrainerProcess::Options& options) : options_(options) {}

  absl::Status Open() {
    file_ = Fd(open(options_.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!file_.open()) return ErrnoStatus(errno, absl::StrCat("log file ", options_.log_path));
    struct stat info;
    written_ = fstat(file_.get(), &info) == 0 ? info.st_size : 0;
    return absl::OkStatus();
  }

  void AddLine(const std::string& line) {
    tail_.push_back(line);
    tail_bytes_ += line.size();
    while (tail_.size() > options_.tail_lines ||
           (tail_bytes_ > options_.tail_bytes && tail_.size() > 1)) {
      tail_bytes_ -= tail_.front().size();
      tail_.pop_front();
    }
  }

  // A full disk must not stop training: what cannot be written is lost, and the tail stays.
  void Write(absl::string_view bytes) {
    if (written_ >= options_.max_log_bytes) {
      rename(options_.log_path.c_str(), absl::StrCat(options_.log_path, ".1").c_str());
      if (!Open().ok()) return;
    }
    while (!bytes.empty()) {
      const ssize_t count = write(file_.get(), bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return;
      written_ += count;
      bytes.remove_prefix(count);
    }
  }

  std::vector<std::string> Tail() const { return {tail_.begin(), tail_.end()}; }

 private:
  const TrainerProcess::Options& options_;
  Fd file_;
  int64_t written_ = 0;
  std::deque<std::string> tail_;
  size_t tail_bytes_ = 0;
};

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
        log_(options_),
        log_lines_(options_.max_log_line, LineBuffer::TooLong::kSplit),
        control_lines_(options_.max_control_line, LineBuffer::TooLong::kFail) {}

  absl::Status Start() {
    RETURN_IF_ERROR(log_.Open());
    wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.open()) return ErrnoStatus(errno, "eventfd");
    ASSIGN_OR_RETURN(Channels channels, MakeChannels());
    ASSIGN_OR_RETURN(pid_, Spawn(options_, channels));
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
    }
    Finish();
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

  void Finish() {
    kill(-pid_, SIGKILL);  // what the trainer may have started itself
    while (ReadLog()) {
    }
    while (ReadControl()) {
    }
    if (std::string rest = log_lines_.TakeRest(); !rest.empty()) DeliverLogLine(std::move(rest));
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

  // Used by the thread only.
  Fd control_, log_pipe_;
  LogSink log_;
  LineBuffer log_lines_, control_lines_;

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
