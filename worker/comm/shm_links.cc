#include "worker/comm/shm_links.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/random_bytes.h"
#include "worker/comm/op_log.h"

namespace muster {
namespace {

struct Hello {
  uint64_t to_nonce, from_nonce;
  int32_t place;
};

absl::Status SystemError(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// The running kernel and the network namespace, in which abstract socket names live.
std::string NodeIdentity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  struct stat net {};
  if (!std::getline(file, boot) || stat("/proc/self/ns/net", &net) != 0) return "";
  return absl::StrCat(boot, ".", net.st_ino);
}

uint64_t RandomNonce() {
  uint64_t nonce = 0;
  std::memcpy(&nonce, RandomBytes(sizeof(nonce)).data(), sizeof(nonce));
  return nonce;
}

sockaddr_un AddressOf(const std::string& abstract_name, socklen_t* size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  abstract_name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + abstract_name.size());
  return address;
}

void CloseIfOpen(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

}  // namespace

std::string ShmAddress::Encode() const {
  return absl::StrCat(node.empty() ? "-" : node, " ", absl::BytesToHexString(socket), " ", nonce);
}

absl::StatusOr<ShmAddress> ShmAddress::Decode(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  ShmAddress address;
  if (words.size() != 3 || !absl::SimpleAtoi(words[2], &address.nonce)) {
    return absl::DataLossError(absl::StrCat("not the address of a rank: ", text));
  }
  if (words[0] != "-") address.node = words[0];
  address.socket = absl::HexStringToBytes(words[1]);
  return address;
}

absl::StatusOr<std::unique_ptr<ShmLinks>> ShmLinks::Open() {
  std::unique_ptr<ShmLinks> links(new ShmLinks());
  links->address_.node = NodeIdentity();
  if (links->address_.node.empty()) {
    return absl::UnavailableError("/proc does not tell which kernel and network this is");
  }
  links->address_.nonce = RandomNonce();
  ASSIGN_OR_RETURN(std::shared_ptr<ShmArena> own, ShmArena::Create(links->address_.nonce));
  links->arenas_.push_back(std::move(own));
  links->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  links->listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (links->wake_ < 0 || links->listener_ < 0) return SystemError("opening a socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // No path: the kernel chooses an abstract name.
  if (bind(links->listener_, reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0 ||
      listen(links->listener_, kMaxShmRanks) != 0) {
    return SystemError("listening on a unix socket");
  }
  socklen_t size = sizeof(address);
  if (getsockname(links->listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return SystemError("naming a unix socket");
  }
  const size_t head = offsetof(sockaddr_un, sun_path) + 1;
  links->address_.socket = std::string(address.sun_path + 1, size - head);
  return links;
}

ShmLinks::~ShmLinks() {
  CloseIfOpen(listener_);
  for (int& socket : sockets_) CloseIfOpen(socket);
  CloseIfOpen(wake_);
}

// wake_ only: the descriptors belong to the thread in Meet or Watch, which closes them then.
void ShmLinks::Close() {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

absl::Status ShmLinks::SendHello(int socket, int place, uint64_t to_nonce) {
  Hello hello{to_nonce, address_.nonce, place};
  iovec data{&hello, sizeof(hello)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = arenas_[place]->fd();
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != sizeof(hello)) {
    return SystemError("handing shared memory to a peer");
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ShmLinks::ReceiveHello(int socket, const std::vector<ShmAddress>& addresses) {
  Hello hello{};
  iovec data{&hello, sizeof(hello)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  int fd = -1;
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  }
  const bool ours = length == sizeof(hello) && fd >= 0 && hello.to_nonce == address_.nonce &&
                    hello.place >= 0 && hello.place < static_cast<int>(addresses.size()) &&
                    addresses[hello.place].nonce == hello.from_nonce &&
                    arenas_[hello.place] == nullptr;
  if (!ours) {
    CloseIfOpen(fd);
    return -1;
  }
  ASSIGN_OR_RETURN(arenas_[hello.place], ShmArena::Map(fd, hello.from_nonce));
  return hello.place;
}

absl::StatusOr<std::vector<std::shared_ptr<ShmArena>>> ShmLinks::Meet(
    const std::vector<ShmAddress>& addresses, int place, absl::Duration limit) {
  const int size = static_cast<int>(addresses.size());
  const std::shared_ptr<ShmArena> own = arenas_[0];
  arenas_.assign(size, nullptr);
  arenas_[place] = own;
  sockets_.assign(size, -1);
  // Each connects to those before it.
  for (int peer = 0; peer < place; ++peer) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return SystemError("opening a socket");
    sockets_[peer] = fd;
    socklen_t length = 0;
    const sockaddr_un to = AddressOf(addresses[peer].socket, &length);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&to), length) != 0) {
      return SystemError(
          "meeting a rank of this node (it ended, or a sandbox keeps them apart: "
          "then set parallel.shared_memory to false)");
    }
    RETURN_IF_ERROR(SendHello(fd, place, addresses[peer].nonce));
  }
  std::vector<int> strangers;  // accepted, not known yet
  const auto close_strangers = [&] {
    for (int& fd : strangers) CloseIfOpen(fd);
  };
  const absl::Duration deadline = RealClock().Steady() + limit;
  for (;;) {
    std::vector<int> missing;
    std::vector<pollfd> fds{{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (int peer = 0; peer < size; ++peer) {
      if (arenas_[peer] != nullptr) continue;
      missing.push_back(peer);
      if (sockets_[peer] >= 0) fds.push_back({sockets_[peer], POLLIN, 0});
    }
    if (missing.empty()) break;
    for (int fd : strangers) fds.push_back({fd, POLLIN, 0});
    const absl::Duration left = deadline - RealClock().Steady();
    if (left <= absl::ZeroDuration()) {
      close_strangers();
      return absl::DeadlineExceededError(
          absl::StrCat("not all ranks of this node were there after ", absl::FormatDuration(limit),
                       "; missing are those with the places ", FormatRanks(missing)));
    }
    poll(fds.data(), fds.size(),
         static_cast<int>(std::min(absl::ToInt64Milliseconds(left) + 1, int64_t{60'000})));
    if (fds[0].revents != 0) {
      close_strangers();
      return absl::AbortedError("given up while forming");
    }
    if (fds[1].revents != 0) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) strangers.push_back(fd);
    }
    for (size_t i = 2; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      const auto stranger = std::find(strangers.begin(), strangers.end(), fds[i].fd);
      const bool was_stranger = stranger != strangers.end();
      if (was_stranger) strangers.erase(stranger);
      const absl::StatusOr<int> peer = ReceiveHello(fds[i].fd, addresses);
      absl::Status bad = peer.status();
      if (bad.ok() && *peer < 0) {
        if (was_stranger) {
          close(fds[i].fd);  // not one of us
          continue;
        }
        bad = absl::UnavailableError("a rank of this node went away while the world was forming");
      }
      if (bad.ok() && was_stranger) {
        sockets_[*peer] = fds[i].fd;
        bad = SendHello(fds[i].fd, place, addresses[*peer].nonce);
      } else if (was_stranger) {
        close(fds[i].fd);
      }
      if (!bad.ok()) {
        close_strangers();
        return bad;
      }
    }
  }
  close_strangers();
  CloseIfOpen(listener_);
  return arenas_;
}

void ShmLinks::Watch(const std::function<void(int place)>& gone) {
  arenas_.clear();  // the engine's
  for (;;) {
    std::vector<pollfd> fds{{wake_, POLLIN, 0}};
    std::vector<int> places{-1};
    for (size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (sockets_[peer] < 0) continue;
      fds.push_back({sockets_[peer], POLLIN, 0});
      places.push_back(static_cast<int>(peer));
    }
    poll(fds.data(), fds.size(), -1);
    if (fds[0].revents != 0) break;
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      CloseIfOpen(sockets_[places[i]]);
      gone(places[i]);
    }
  }
  for (int& socket : sockets_) CloseIfOpen(socket);
}

}  // namespace muster
