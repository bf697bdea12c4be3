// Waits until all of a round have arrived, and keeps when each of them did. Thread-safe.
#pragma once

#include <chrono>
#include <vector>

#include "common/runtime/mutex.h"

namespace muster::bench {

// Seconds of CLOCK_MONOTONIC: the same clock as time.monotonic() of the script that drives this.
double Now();

class Gathering {
 public:
  // `count` are to arrive from now on. What was expected before does not count any more.
  void Expect(int count);
  void Arrive();
  // Seconds from `start` to each arrival, sorted, once all are here; ends the process with `what`,
  // and how many are missing, after `limit_s`: a benchmark that waits for nobody has failed.
  std::vector<double> Wait(double start, const char* what, double limit_s = 60);
  int arrived();

 private:
  Mutex mu_;
  CondVar all_;
  int expected_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<double> times_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::bench
