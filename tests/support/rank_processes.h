// Ranks as forked processes for tests, with the rendezvous served by the parent. Use it from a
// process that has no threads yet (a gtest case of its own). Torch-free.
//
// The parent is single-threaded: everything happens inside Poll. A child runs its body and leaves
// by _exit; it dies with the parent.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/support/map_store.h"

namespace muster {

// A rank's side.
class RankLink {
 public:
  RankLink(int rank, int store_fd, int line_fd)
      : rank_(rank), line_fd_(line_fd), connection_(std::make_shared<StoreConnection>(store_fd)) {}

  int rank() const { return rank_; }
  std::shared_ptr<RendezvousStore> Store(int64_t epoch) {
    return std::make_shared<SocketStore>(connection_, epoch);
  }
  // To the parent.
  void Say(const std::string& line) {
    if (!store_wire::SendPacket(line_fd_, line)) _exit(3);
  }
  // Blocks for the parent's next line; ends the process when the parent is gone.
  std::string Hear() {
    std::string line;
    if (!store_wire::ReceivePacket(line_fd_, &line)) _exit(0);
    return line;
  }

 private:
  const int rank_, line_fd_;
  const std::shared_ptr<StoreConnection> connection_;
};

class RankProcesses {
 public:
  using Body = std::function<void(RankLink& link)>;

  RankProcesses(int size, Body body) : body_(std::move(body)), ranks_(size) {
    signal(SIGPIPE, SIG_IGN);
    for (int rank = 0; rank < size; ++rank) Spawn(rank);
  }
  ~RankProcesses() {
    for (Rank& rank : ranks_) Reap(rank);
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  StoreServer& store() { return store_; }

  void Spawn(int number) {
    int store[2], line[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, store) != 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line) != 0) {
      std::perror("socketpair");
      std::abort();
    }
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const Rank& other : ranks_) {
        if (other.store_fd >= 0) close(other.store_fd);
        if (other.line_fd >= 0) close(other.line_fd);
      }
      close(store[0]);
      close(line[0]);
      RankLink link(number, store[1], line[1]);
      body_(link);
      std::fflush(nullptr);
      _exit(0);
    }
    close(store[1]);
    close(line[1]);
    ranks_[number] = {pid, store[0], line[0], false, 0};
  }

  void Signal(int rank, int signal_number) { kill(ranks_[rank].pid, signal_number); }
  // Kills and waits for the end.
  void Remove(int rank) { Reap(ranks_[rank]); }
  void Tell(int rank, const std::string& line) {
    store_wire::SendPacket(ranks_[rank].line_fd, line);
  }
  bool HasExited(int rank) const { return ranks_[rank].exited; }
  // As waitpid gives it; 0 is a clean end.
  int ExitStatus(int rank) const { return ranks_[rank].status; }
  bool AllExited() const {
    for (const Rank& rank : ranks_) {
      if (!rank.exited) return false;
    }
    return true;
  }

  // Serves the store, hands lines to `on_line`, notes exits. Returns after at most `limit`, sooner
  // when something happened.
  void Poll(absl::Duration limit, const std::function<void(int, const std::string&)>& on_line) {
    std::vector<pollfd> fds;
    for (const Rank& rank : ranks_) {
      fds.push_back({rank.store_fd, POLLIN, 0});
      fds.push_back({rank.line_fd, POLLIN, 0});
    }
    const timespec wait = absl::ToTimespec(limit);
    ppoll(fds.data(), fds.size(), &wait, nullptr);
    store_.Tick();
    for (int i = 0; i < size(); ++i) {
      Rank& rank = ranks_[i];
      if (rank.store_fd >= 0) store_.Serve(rank.store_fd);
      std::string line;
      while (rank.line_fd >= 0 && store_wire::ReceivePacket(rank.line_fd, &line, MSG_DONTWAIT)) {
        on_line(i, line);
      }
      if (rank.pid > 0 && !rank.exited && waitpid(rank.pid, &rank.status, WNOHANG) == rank.pid) {
        // What it said before it ended is still in the socket.
        while (store_wire::ReceivePacket(rank.line_fd, &line, MSG_DONTWAIT)) on_line(i, line);
        rank.exited = true;
        Close(rank);
      }
    }
  }

 private:
  struct Rank {
    pid_t pid = 0;
    int store_fd = -1, line_fd = -1;
    bool exited = false;
    int status = 0;
  };

  void Close(Rank& rank) {
    if (rank.store_fd < 0) return;
    store_.Forget(rank.store_fd);
    close(rank.store_fd);
    close(rank.line_fd);
    rank.store_fd = rank.line_fd = -1;
  }
  void Reap(Rank& rank) {
    if (rank.pid > 0 && !rank.exited) {
      kill(rank.pid, SIGKILL);
      waitpid(rank.pid, &rank.status, 0);
      rank.exited = true;
    }
    Close(rank);
  }

  const Body body_;
  StoreServer store_;
  std::vector<Rank> ranks_;
};

// Runs `body` on `size` forked ranks in epoch 1 and returns what they complained about: the lines
// they said, exits other than 0, and a hang after `limit`.
inline std::vector<std::string> RunForked(int size, const RankProcesses::Body& body,
                                          absl::Duration limit = absl::Seconds(60)) {
  RankProcesses ranks(size, body);
  ranks.store().StartEpoch(1);
  std::vector<std::string> complaints;
  const absl::Time deadline = absl::Now() + limit;
  while (!ranks.AllExited()) {
    ranks.Poll(absl::Milliseconds(20), [&](int rank, const std::string& line) {
      complaints.push_back(absl::StrCat("rank ", rank, ": ", line));
    });
    if (absl::Now() < deadline) continue;
    for (int i = 0; i < size; ++i) {
      if (!ranks.HasExited(i)) complaints.push_back(absl::StrCat("rank ", i, " hangs"));
    }
    return complaints;
  }
  for (int i = 0; i < size; ++i) {
    if (ranks.ExitStatus(i) != 0) {
      complaints.push_back(absl::StrCat("rank ", i, " ended with status ", ranks.ExitStatus(i)));
    }
  }
  return complaints;
}

}  // namespace muster
