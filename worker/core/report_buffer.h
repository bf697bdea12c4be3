// The reports of a node on their way to the coordinator: batched, numbered, kept until
// acknowledged, sent again after a reconnection, bounded. Pure; not thread-safe.
//
// Invariants: batches in flight are numbered without gaps, first = acknowledged + 1;
// in flight <= max_batches_in_flight; waiting reports <= max_waiting, where log lines give way
// first, then the oldest reports that are not an assignment's outcome. What was left out is said.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "worker/core/agent_messages.h"

namespace muster {

class ReportBuffer {
 public:
  struct Options {
    absl::Duration batch_delay = absl::Milliseconds(20);
    size_t max_batch_reports = 256;
    size_t max_batches_in_flight = 16;
    size_t max_waiting = 100'000;         // reports
    size_t max_waiting_log_lines = 5000;  // over all workers
  };
  explicit ReportBuffer(Options options) : options_(options) {}

  void Add(TrainerReport report, absl::Duration now);
  // Batches that are due; each of them is to be sent, now. Only while connected.
  std::vector<std::shared_ptr<const ReportBatch>> TakeDue(absl::Duration now);
  // When TakeDue has something to give, if nothing else happens; none: not until then.
  std::optional<absl::Duration> NextDue() const;
  void Acknowledge(int64_t through);
  // What a new stream starts with, when the coordinator knows batches up to `through`: nullopt when
  // it lacks some that are gone here, so that nothing can be continued.
  std::optional<std::vector<std::shared_ptr<const ReportBatch>>> Resume(int64_t through);
  // A new incarnation: everything is forgotten, numbers start at 1.
  void Reset();
  bool empty() const { return waiting_.empty() && in_flight_.empty(); }

 private:
  void MakeRoom();

  const Options options_;
  std::deque<std::shared_ptr<const ReportBatch>> in_flight_;
  int64_t acknowledged_ = 0;   // highest number that needs no keeping
  int64_t last_sequence_ = 0;  // highest number given
  std::deque<TrainerReport> waiting_;
  size_t waiting_log_lines_ = 0;
  size_t log_lines_left_out_ = 0;  // since the last line that was taken
  std::optional<absl::Duration> due_;
};

}  // namespace muster
