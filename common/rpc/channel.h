// How Muster's processes reach each other by gRPC: one set of limits for clients and servers.
// Thread-safe.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/rpc/token.h"

namespace muster {

// Of one message either way. A spec is at most 1 MiB, a batch of reports a few.
inline constexpr int kMaxMessageBytes = 32 << 20;

// What a unary call that does not wait gets; a call that waits gets its wait more.
inline constexpr absl::Duration kDefaultRpcDeadline = absl::Seconds(5);

// What gRPC is to connect to. A numeric address is named as such ("ipv4:10.0.0.1:7700",
// "ipv6:[::1]:7700"), so that no resolver is asked: no DNS, no /etc/hosts, no name service. A name
// stays as it is. Pure.
std::string GrpcTarget(const std::string& address);

// A lazy channel to HOST:PORT: proxies of the environment are not used, a broken connection is
// tried again within half a second, and a silent peer is noticed within 15 s by pings while a call
// is open. Every call on it, whatever its kind, carries `token` if there is one.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address, const Token& token = {});

// Every call has one.
void SetDeadline(grpc::ClientContext* context, absl::Duration from_now);

// Server side of the same limits. Switches port sharing (SO_REUSEPORT) off: gRPC's default lets a
// second server take half of the connections of the first. Also takes what gRPC does beside its
// work out of the way, for this connection (bandwidth probes) and for the process (Abseil's
// deadlock detector).
void SetServerLimits(grpc::ServerBuilder* builder);

// Pause before try `attempt` (0, 1, ...): doubles from `first` up to `cap`, spread by `unit` in [0,
// 1) over its upper half so that many clients do not come back at once. Pure.
struct BackoffOptions {
  absl::Duration first = absl::Milliseconds(50);
  absl::Duration cap = absl::Seconds(1);
};
absl::Duration Backoff(int attempt, double unit, const BackoffOptions& options = {});

}  // namespace muster
