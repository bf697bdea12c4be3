// How many calls of each RPC ended with which code, and how long they took. Thread-safe, without
// locks: called for every call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster {

class RpcStats {
 public:
  // `path`: of the access table; another is not counted. `code`: of gRPC, 0 to 16.
  void Count(absl::string_view path, int code, absl::Duration took);

  // muster_rpc_requests_total and muster_rpc_duration_seconds of the RPCs that were called.
  std::string RenderPrometheus() const;

 private:
  static constexpr int kMaxRpcs = 32, kNumCodes = 17;
  // Upper bounds of the histogram; a call of the command line should take no longer than 30 ms.
  static constexpr std::array<double, 8> kBounds = {0.001, 0.003, 0.01, 0.03,
                                                    0.1,   0.3,   1,    10};  // s

  struct OfRpc {
    std::array<std::atomic<int64_t>, kNumCodes> codes{};
    std::array<std::atomic<int64_t>, kBounds.size() + 1> buckets{};  // the last: beyond all bounds
    std::atomic<int64_t> microseconds = 0;
  };
  std::array<OfRpc, kMaxRpcs> rpcs_;  // in the order of the access table
};

}  // namespace muster
