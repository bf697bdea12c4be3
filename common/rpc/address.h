// Network addresses as text: HOST:PORT of flags, and the peer names that gRPC gives. No look-ups.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
  // "127.0.0.1:7700", "[::1]:7700"
  std::string ToString() const;
};

// INVALID_ARGUMENT for anything but HOST:PORT with a port of 0 to 65535.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// 127.0.0.0/8, ::1 or "localhost": reachable only from this machine.
bool IsLoopback(absl::string_view host);

// The address in "ipv4:10.0.0.1:4711" or "ipv6:%5Bfe80::1%5D:4711"; empty for another kind of peer.
std::string PeerHost(absl::string_view grpc_peer);

}  // namespace muster
