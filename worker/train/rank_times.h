// How this rank spends its steps: computing, waiting for other ranks, waiting for data. Told at
// most every 10 s, as an average over the steps since; a rank that computes longer than its peers
// is the one that they wait for. One thread.
#pragma once

#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "common/control/messages.h"
#include "worker/train/job_data.h"

namespace muster {

class RankTimes {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(10);

  // Counts the time that the iterators take, from now on.
  void Follow(DataIterators& data);
  // The first step begins.
  void Start(absl::Duration now) { began_ = now; }
  // After each step. `waited`: for other ranks, in all so far. A message when one is due, without
  // epoch and iteration. What lies between steps (evaluations, checkpoints) counts as computing.
  std::optional<RankTimesMessage> AfterStep(absl::Duration now, absl::Duration waited);

 private:
  class TimedIterator;
  const std::shared_ptr<absl::Duration> data_ = std::make_shared<absl::Duration>();
  absl::Duration began_, waited_before_, data_before_;
  int64_t steps_ = 0;
};

}  // namespace muster
