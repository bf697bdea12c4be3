#include "common/rpc/channel.h"

#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_interceptor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/address.h"

namespace muster {
namespace {

// Adds the token to a call's metadata. (gRPC's call credentials refuse to go over a connection that
// is not encrypted; a cluster without certificates has no other.)
class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(const std::string* authorization) : authorization_(authorization) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(kAuthorizationKey, *authorization_);
    }
    methods->Proceed();
  }

 private:
  const std::string* const authorization_;
};

// The channel owns it and outlives its calls.
class TokenInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptorFactory(const Token& token)
      : authorization_(token.AuthorizationValue()) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(&authorization_);
  }

 private:
  const std::string authorization_;
};

}  // namespace

std::string GrpcTarget(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return address;
  in6_addr ignored;
  if (inet_pton(AF_INET, parsed->host.c_str(), &ignored) == 1) {
    return absl::StrCat("ipv4:", parsed->ToString());
  }
  if (inet_pton(AF_INET6, parsed->host.c_str(), &ignored) == 1) {
    return absl::StrCat("ipv6:", parsed->ToString());
  }
  return address;
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address, const Token& token) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Its own connection, not one shared with every channel of the process to that address: a
  // reconnection then starts fresh.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);  // limit of one connection attempt
  // A coordinator that is back has all its agents again within a few seconds.
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!token.empty()) interceptors.push_back(std::make_unique<TokenInterceptorFactory>(token));
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      GrpcTarget(address), grpc::InsecureChannelCredentials(), args, std::move(interceptors));
}

void SetDeadline(grpc::ClientContext* context, absl::Duration from_now) {
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(from_now));
}

void SetServerLimits(grpc::ServerBuilder* builder) {
  // Debian's Abseil is built with its deadlock detector, which sends every lock that gRPC takes
  // through one table of the process: a quarter of the cost of a registration (measured).
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // Estimating the bandwidth takes a ping and its answer after nearly every small message, which is
  // half the cost of a heartbeat; what it gains, larger windows, large messages get without it.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // The clients' pings (above) must not count as abuse.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
}

absl::Duration Backoff(int attempt, double unit, const BackoffOptions& options) {
  // Beyond 2^30 times the first pause any cap is reached; the shift must not overflow.
  const absl::Duration full =
      std::min(options.cap, options.first * (int64_t{1} << std::clamp(attempt, 0, 30)));
  return full * (0.5 + 0.5 * unit);
}

}  // namespace muster
