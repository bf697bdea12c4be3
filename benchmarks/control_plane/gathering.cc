#include "benchmarks/control_plane/gathering.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/time/time.h"

namespace muster::bench {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Gathering::Expect(int count) {
  MutexLock lock(&mu_);
  expected_ = count;
  times_.clear();
  times_.reserve(count);
}

void Gathering::Arrive() {
  const double now = Now();
  MutexLock lock(&mu_);
  if (static_cast<int>(times_.size()) >= expected_) return;
  times_.push_back(now);
  if (static_cast<int>(times_.size()) == expected_) all_.NotifyAll();
}

int Gathering::arrived() {
  MutexLock lock(&mu_);
  return static_cast<int>(times_.size());
}

std::vector<double> Gathering::Wait(double start, const char* what, double limit_s) {
  const double limit = Now() + limit_s;
  std::vector<double> since;
  MutexLock lock(&mu_);
  while (static_cast<int>(times_.size()) < expected_) {
    const double left = limit - Now();
    if (left <= 0) {
      std::fprintf(stderr, "%s: %zu of %d after %.0f s\n", what, times_.size(), expected_, limit_s);
      std::_Exit(1);
    }
    all_.WaitFor(&mu_, absl::Seconds(left));
  }
  for (const double time : times_) since.push_back(time - start);
  std::sort(since.begin(), since.end());
  return since;
}

}  // namespace muster::bench
