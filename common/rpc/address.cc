#include "common/rpc/address.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

// "a.b.c.d" with four numbers of 0 to 255 that begins with 127.
bool IsLoopbackIpv4(absl::string_view host) {
  int parts = 0;
  bool first_is_127 = false;
  while (true) {
    const size_t dot = host.find('.');
    int value = 0;
    if (!absl::SimpleAtoi(host.substr(0, dot), &value) || value < 0 || value > 255) return false;
    if (parts == 0) first_is_127 = value == 127;
    ++parts;
    if (dot == absl::string_view::npos) break;
    host.remove_prefix(dot + 1);
  }
  return parts == 4 && first_is_127;
}

}  // namespace

std::string HostPort::ToString() const {
  if (absl::StrContains(host, ':')) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", text, "\": ", why, "; write HOST:PORT, such as 127.0.0.1:7700"));
  };
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return bad("the port is missing");
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return bad("the bracket is not closed");
  } else if (absl::StrContains(host, ':')) {
    return bad("an IPv6 address needs brackets");
  }
  if (host.empty()) return bad("the host is missing");
  HostPort result;
  result.host = std::string(host);
  if (!absl::SimpleAtoi(text.substr(colon + 1), &result.port) || result.port < 0 ||
      result.port > 65535) {
    return bad("the port must be a number from 0 to 65535");
  }
  return result;
}

bool IsLoopback(absl::string_view host) {
  return host == "localhost" || host == "::1" || IsLoopbackIpv4(host);
}

std::string PeerHost(absl::string_view grpc_peer) {
  if (!absl::ConsumePrefix(&grpc_peer, "ipv4:") && !absl::ConsumePrefix(&grpc_peer, "ipv6:")) {
    return "";
  }
  const std::string plain = absl::StrReplaceAll(grpc_peer, {{"%5B", "["}, {"%5D", "]"}});
  const auto parsed = ParseHostPort(plain);
  if (!parsed.ok()) return "";
  absl::string_view host = parsed->host;
  absl::ConsumePrefix(&host, "::ffff:");  // IPv4 seen by a socket of both kinds
  return std::string(host);
}

}  // namespace muster
