// What recording costs: nanoseconds a place, with nobody tracing and with a recorder, on one
// thread. Prints JSON. usage: bench-trace [rounds]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "worker/train/trace_recorder.h"

namespace muster {
namespace {

// Read anew for each place, as a member would be.
TraceRecorder* volatile current = nullptr;

template <typename Body>
double NanosEach(int64_t rounds, Body body) {
  const int64_t begin = SteadyNanos();
  for (int64_t i = 0; i < rounds; ++i) body();
  return static_cast<double>(SteadyNanos() - begin) / static_cast<double>(rounds);
}

void Scope() { const TraceScope scope(current, TraceKind::kPart, "optimizer"); }

// An operation as the backends log it, waited for and done.
void Operation(OpLog& log) {
  const absl::Time now = absl::UnixEpoch();
  const int64_t sequence = log.Start({"all_reduce", "float", 1024, 0, 4096}, now);
  const OpLog::WaitScope waiting(log, sequence);
  log.Finish(sequence, absl::OkStatus(), now);
}

int Run(int64_t rounds) {
  OpLog log("tp", {0, 1});
  const double scope_off = NanosEach(rounds, Scope);
  const double op_off = NanosEach(rounds, [&] { Operation(log); });
  TraceRecorder recorder(3 * rounds + 1);
  current = &recorder;
  log.Observe(&recorder);
  const double scope_on = NanosEach(rounds, Scope);
  const double op_on = NanosEach(rounds, [&] { Operation(log); });
  log.Observe(nullptr);
  std::printf(
      "{\"rounds\": %lld, \"scope_off_ns\": %.2f, \"scope_on_ns\": %.1f, \"operation_off_ns\": "
      "%.1f, "
      "\"operation_on_ns\": %.1f, \"dropped\": %lld}\n",
      static_cast<long long>(rounds), scope_off, scope_on, op_off, op_on,
      static_cast<long long>(recorder.Take().num_dropped));
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  return muster::Run(argc > 1 ? std::max(1ll, std::atoll(argv[1])) : 200'000);
}
