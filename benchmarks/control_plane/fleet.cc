#include "benchmarks/control_plane/fleet.h"

#include <grpcpp/grpcpp.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "benchmarks/control_plane/gathering.h"

namespace muster::bench {

std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // else equal channels share a connection
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);  // limit of one attempt
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  args.SetMaxReceiveMessageSize(32 << 20);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

std::string RaiseDescriptorLimit(int num_connections) {
  const rlim_t needed = num_connections + 200;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= needed) return "";
  if (limit.rlim_max < needed) {
    return absl::StrCat("needs ", needed, " file descriptors, the hard limit is ", limit.rlim_max,
                        "; raise it (ulimit -Hn) or choose smaller cases by MUSTER_BENCH_CASES");
  }
  limit.rlim_cur = needed;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return "setrlimit(RLIMIT_NOFILE) was refused";
  return "";
}

int64_t SendPaced(int count, double interval_s, double window_s,
                  const std::function<void(int)>& send) {
  const double start = Now();
  int64_t sent = 0;
  for (;;) {
    const double elapsed = std::min(Now() - start, window_s);
    const auto due = static_cast<int64_t>(elapsed / interval_s * count);
    for (; sent < due; ++sent) send(static_cast<int>(sent % count));
    if (elapsed >= window_s) return sent;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

nlohmann::json Summary(const std::vector<double>& sorted) {
  if (sorted.empty()) return nullptr;
  const auto at = [&](double part) {
    return sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
  };
  return {{"p50", at(0.5)}, {"p99", at(0.99)}, {"max", sorted.back()}};
}

void MustBeOk(const grpc::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: code %d: %s\n", what, static_cast<int>(status.error_code()),
               status.error_message().c_str());
  std::_Exit(1);
}

}  // namespace muster::bench
