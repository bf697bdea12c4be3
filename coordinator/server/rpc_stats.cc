#include "coordinator/server/rpc_stats.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/server/access.h"
#include "coordinator/server/prometheus.h"

namespace muster {

void RpcStats::Count(absl::string_view path, int code, absl::Duration took) {
  const auto table = AccessTable();
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const RpcAccess& rpc) { return rpc.path == path; });
  const size_t index = found - table.begin();
  if (found == table.end() || index >= kMaxRpcs || code < 0 || code >= kNumCodes) return;
  OfRpc& rpc = rpcs_[index];
  rpc.codes[code].fetch_add(1, std::memory_order_relaxed);
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), absl::ToDoubleSeconds(took));
  rpc.buckets[bound - kBounds.begin()].fetch_add(1, std::memory_order_relaxed);
  rpc.microseconds.fetch_add(absl::ToInt64Microseconds(took), std::memory_order_relaxed);
}

std::string RpcStats::RenderPrometheus() const {
  PrometheusFamily requests("muster_rpc_requests_total", "counter",
                            "Calls that were answered, by RPC and status code.");
  PrometheusFamily durations("muster_rpc_duration_seconds", "histogram",
                             "From a call's arrival to its answer, the time it chose to wait "
                             "included.");
  for (size_t i = 0; i < AccessTable().size() && i < kMaxRpcs; ++i) {
    // "/muster.v1.JobService/GetJob"
    const std::vector<std::string> parts = absl::StrSplit(AccessTable()[i].path, '/');
    const PrometheusLabels labels = {{"service", parts[1]}, {"method", parts[2]}};
    const OfRpc& rpc = rpcs_[i];
    for (int code = 0; code < kNumCodes; ++code) {
      const int64_t count = rpc.codes[code].load(std::memory_order_relaxed);
      if (count == 0) continue;
      PrometheusLabels with_code = labels;
      with_code.emplace_back("code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
      requests.Add(with_code, static_cast<double>(count));
    }
    int64_t seen = 0;
    for (const auto& bucket : rpc.buckets) seen += bucket.load(std::memory_order_relaxed);
    if (seen == 0) continue;
    int64_t below = 0;
    for (size_t b = 0; b < rpc.buckets.size(); ++b) {
      below += rpc.buckets[b].load(std::memory_order_relaxed);
      PrometheusLabels with_bound = labels;
      with_bound.emplace_back("le", b < kBounds.size() ? absl::StrCat(kBounds[b]) : "+Inf");
      durations.Add(with_bound, static_cast<double>(below), "_bucket");
    }
    durations.Add(labels, 1e-6 * rpc.microseconds.load(std::memory_order_relaxed), "_sum");
    durations.Add(labels, static_cast<double>(below), "_count");
  }
  return absl::StrCat(requests.text(), durations.text());
}

}  // namespace muster
