// HTTP as a client without manners: sends bytes, reads until the other end closes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace muster {

inline int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

// False: the other end has closed.
inline bool SendAll(int fd, const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t size = send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (size <= 0) return false;
    sent += size;
  }
  return true;
}

inline void CloseSocket(int fd) { close(fd); }

// All until the other end closes; then closes this one.
inline std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = recv(fd, buffer, sizeof(buffer), 0)) > 0;) text.append(buffer, size);
  close(fd);
  return text;
}

inline std::string AskHttp(int port, const std::string& request) {
  const int fd = ConnectTo(port);
  SendAll(fd, request);
  shutdown(fd, SHUT_WR);
  return ReadAll(fd);
}

inline std::string GetHttp(int port, const std::string& path, const std::string& headers = "") {
  return AskHttp(port, "GET " + path + " HTTP/1.1\r\n" + headers + "\r\n");
}

}  // namespace muster
