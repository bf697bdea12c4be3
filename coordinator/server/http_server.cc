#include "coordinator/server/http_server.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "coordinator/server/http_loop.h"
#include "coordinator/server/port_holder.h"

namespace muster {

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HostPort& address,
                                                              HttpHandler handler,
                                                              const HttpLimits& limits) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("http=", address.ToString(), ": ", gai_strerror(error)));
  }
  const auto free_found = absl::MakeCleanup([&] { freeaddrinfo(found); });
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::InternalError(absl::StrCat("http socket: ", std::strerror(errno)));
  const int on = 1;  // only against connections of a former life in TIME_WAIT
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    const std::string why = std::strerror(errno);
    close(fd);
    return absl::AlreadyExistsError(absl::StrCat("cannot listen on ", address.ToString(),
                                                 " (http): ", why, "; ",
                                                 DescribePortHolder(address.port)));
  }
  char port[16];
  getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, port, sizeof(port),
              NI_NUMERICSERV);
  return std::unique_ptr<HttpServer>(
      new HttpServer(fd, std::atoi(port), std::move(handler), limits));
}

HttpServer::HttpServer(int listen_fd, int port, HttpHandler handler, const HttpLimits& limits)
    : port_(port), loop_(std::make_unique<HttpLoop>(listen_fd, std::move(handler), limits)) {
  thread_ = std::thread([this] { loop_->Run(); });
}

HttpServer::~HttpServer() { Stop(); }

void HttpServer::Stop() {
  if (!thread_.joinable()) return;
  loop_->Stop();
  thread_.join();
}

}  // namespace muster
