#include "linear_hub.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr int kPatienceMs = 60000;

class Hub {
 public:
  Hub(const LinearJob& job, const LinearHubOptions& options) : job_(job), options_(options) {
    for (Worker& worker : workers_) {
      worker.memory = memfd_create("snapshots", MFD_CLOEXEC);
      MUSTER_CHECK(worker.memory >= 0 && ftruncate(worker.memory, sizeof(LinearMemory)) == 0);
    }
  }
  ~Hub() {
    for (Worker& worker : workers_) {
      if (worker.pid > 0) {
        kill(worker.pid, SIGKILL);
        waitpid(worker.pid, nullptr, 0);
      }
      if (worker.socket >= 0) close(worker.socket);
      close(worker.memory);
    }
  }

  absl::StatusOr<LinearRun> Run() {
    for (int rank = 0; rank < kLinearRanks; ++rank) Spawn(rank);
    while (!ended_) {
      RETURN_IF_ERROR(Pump());
      RETURN_IF_ERROR(Answer());
    }
    return run_;
  }

 private:
  struct Worker {
    int memory = -1, socket = -1;
    pid_t pid = 0;
    std::string waiting;  // its message that wants an answer; empty: none
  };

  void Spawn(int rank) {
    int ends[2];
    MUSTER_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    const timeval patience = {.tv_sec = kPatienceMs / 1000};
    MUSTER_CHECK(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0);
    Worker& worker = workers_[rank];
    worker.pid = fork();
    MUSTER_CHECK(worker.pid >= 0);
    if (worker.pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[0]);
      for (const Worker& other : workers_) {
        if (other.socket >= 0) close(other.socket);
      }
      RunLinearTrainer(job_, rank, ends[1], worker.memory);
    }
    close(ends[1]);
    worker.socket = ends[0];
    worker.waiting.clear();
  }

  void Send(int rank, const std::string& message) {
    workers_[rank].waiting.clear();
    // Who is gone is found by Pump.
    (void)send(workers_[rank].socket, message.data(), message.size(), MSG_NOSIGNAL);
  }

  // Waits for a message of anybody (or of `only`), and takes what there is.
  absl::Status Pump(std::optional<int> only = std::nullopt) {
    std::array<pollfd, kLinearRanks> polls;
    for (int rank = 0; rank < kLinearRanks; ++rank) {
      const bool wanted = !only.has_value() || *only == rank;
      polls[rank] = {.fd = wanted ? workers_[rank].socket : -1, .events = POLLIN};
    }
    if (poll(polls.data(), polls.size(), kPatienceMs) <= 0)
      return absl::InternalError("nothing happens");
    for (int rank = 0; rank < kLinearRanks; ++rank) {
      if (polls[rank].revents != 0) RETURN_IF_ERROR(Take(rank));
    }
    return absl::OkStatus();
  }

  absl::Status Take(int rank) {
    std::string message(1 << 16, '\0');
    const ssize_t size = recv(workers_[rank].socket, message.data(), message.size(), 0);
    if (size <= 0) return OnDeath(rank);
    message.resize(size);
    if (message[0] == 'S') return OnReport(message);
    workers_[rank].waiting = message;
    return absl::OkStatus();
  }

  absl::Status OnDeath(int rank) {
    Worker& worker = workers_[rank];
    int status = 0;
    waitpid(worker.pid, &status, 0);
    worker.pid = 0;
    close(worker.socket);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
      return absl::InternalError(absl::StrCat("rank ", rank, " ended with status ", status));
    ++run_.deaths;
    ++epoch_;
    if (options_.lose_memory) {
      MUSTER_CHECK(ftruncate(worker.memory, 0) == 0);
      MUSTER_CHECK(ftruncate(worker.memory, sizeof(LinearMemory)) == 0);
    }
    Spawn(rank);
    return absl::OkStatus();
  }

  absl::Status OnReport(const std::string& message) {
    const std::vector<std::string> parts = absl::StrSplit(message.substr(2), ' ');
    const auto [known, is_new] = run_.ledger.try_emplace(std::stol(parts[0]), parts[1]);
    if (is_new || known->second == parts[1]) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("step ", parts[0], " had loss ", known->second,
                                            ", and when it was run again ", parts[1]));
  }

  static int64_t EpochOf(const std::string& message) {
    return message.size() < 3 ? 0 : std::strtol(&message[2], nullptr, 10);
  }

  absl::Status Answer() {
    bool all_same = true;
    for (int rank = 0; rank < kLinearRanks; ++rank) {
      std::string& waiting = workers_[rank].waiting;
      const bool in_epoch = !waiting.empty() && waiting[0] != 'J';
      if (in_epoch && EpochOf(waiting) < epoch_) Send(rank, "B");
      all_same &= !waiting.empty() && HeadOf(waiting) == HeadOf(workers_[0].waiting);
    }
    if (!all_same) return absl::OkStatus();
    switch (workers_[0].waiting[0]) {
      case 'J':
        for (int rank = 0; rank < kLinearRanks; ++rank) Send(rank, absl::StrCat("A ", epoch_));
        return absl::OkStatus();
      case 'D':
        for (int rank = 0; rank < kLinearRanks; ++rank) {
          std::memcpy(&run_.final[rank],
                      &workers_[rank].waiting[HeadOf(workers_[rank].waiting).size() + 1],
                      sizeof(LinearState));
          Send(rank, "Q");
        }
        ended_ = true;
        return absl::OkStatus();
      default:
        return Give();
    }
  }

  static std::string HeadOf(const std::string& message) {
    return message.substr(0, message.find('\n'));
  }

  // One after the other.
  absl::Status Give() {
    const std::string head = HeadOf(workers_[0].waiting);
    std::string all = "R";
    for (const Worker& worker : workers_) {
      const std::string bytes = worker.waiting.substr(head.size() + 1);
      const uint32_t size = static_cast<uint32_t>(bytes.size());
      all.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(bytes);
    }
    const bool agreement = head.find(" agree") != std::string::npos;
    if (agreement) ++run_.agreements;
    const int first = options_.first, second = 1 - first;
    const int64_t epoch = epoch_;
    Send(first, all);
    // A report may come before what it waits in next.
    while (workers_[first].waiting.empty() && epoch_ == epoch) RETURN_IF_ERROR(Pump(first));
    if (epoch_ != epoch) return absl::OkStatus();  // it died, and the other never hears of it
    const std::string fatal = absl::StrCat(" agree", options_.kill_second_in_agreement);
    if (epoch == 1 && head.ends_with(fatal)) {
      kill(workers_[second].pid, SIGKILL);
      return absl::OkStatus();
    }
    Send(second, all);
    return absl::OkStatus();
  }

  const LinearJob& job_;
  const LinearHubOptions options_;
  std::array<Worker, kLinearRanks> workers_;
  int64_t epoch_ = 1;
  bool ended_ = false;
  LinearRun run_;
};

}  // namespace

absl::StatusOr<LinearRun> RunLinearJob(const LinearJob& job, const LinearHubOptions& options) {
  return Hub(job, options).Run();
}

}  // namespace muster
