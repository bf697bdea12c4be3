// The reports of a node on their way to the coordinator: batched, numbered, kept until
// acknowledged, sent again after a reconnection, bounded. Pure but for the spill; not thread-safe.
//
//   Add -> waiting (memory) -> spilled (files, only while stalled) -> front (memory) -> in flight
//   -> kept
//
// Numbers are given when a batch is sent, so they have no gaps whatever was dropped before.
// Invariants: batches in flight are numbered without gaps, first = acknowledged + 1; those sent for
// the first time <= max_batches_in_flight; waiting reports <= max_waiting, where log lines give way
// first, then the oldest reports that are not an assignment's outcome. What was left out is said.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "worker/core/agent_messages.h"
#include "worker/core/report_spill.h"

namespace muster {

class ReportBuffer {
 public:
  struct Options {
    absl::Duration batch_delay = absl::Milliseconds(20);
    size_t max_batch_reports = 256;
    size_t max_batches_in_flight = 16;
    size_t max_waiting = 100'000;         // reports in memory
    size_t max_waiting_log_lines = 5000;  // over all workers, in memory
    // Reports that wait in memory while the coordinator is away, or acknowledges nothing...
    size_t spill_at = 4096;
    // ...then they go here. Outlives the buffer; null: memory only.
    ReportSpill* spill = nullptr;
    // Acknowledged batches that can be sent again: a coordinator whose machine lost its power may
    // have lost the last second of what it acknowledged.
    size_t keep_acknowledged = 64;
  };
  explicit ReportBuffer(Options options) : options_(options) {}

  void Add(NodeReport report, absl::Duration now);
  // Batches that are due; each of them is to be sent, now. Only while connected.
  std::vector<std::shared_ptr<const NodeReportBatch>> TakeDue(absl::Duration now);
  // When TakeDue has something to give, if nothing else happens; none: not until then.
  std::optional<absl::Duration> NextDue() const;
  void Acknowledge(int64_t through);
  // What a new stream starts with, when the coordinator knows batches up to `through`: nullopt when
  // that can't be (more than was sent, or long ago), so that nothing can be continued. Batches that
  // are gone here are made up for by empty ones: their content is lost, their numbers are not.
  std::optional<std::vector<std::shared_ptr<const NodeReportBatch>>> Resume(int64_t through);
  // The stream broke: what comes now may be spilled.
  void Disconnect() { connected_ = false; }
  // A new incarnation: everything is forgotten, numbers start at 1.
  void Reset();
  bool empty() const { return NothingWaits() && in_flight_.empty(); }

 private:
  bool NothingWaits() const;
  // Moves what waits in memory to the spill, if it can be.
  bool Spill();
  void TakeFromSpill();
  void MakeRoom();
  NodeReport NoteLike(const NodeReport& report, std::string kind, std::string text) const;

  const Options options_;
  bool connected_ = false;
  std::deque<std::shared_ptr<const NodeReportBatch>> kept_;  // acknowledged, the newest
  std::deque<std::shared_ptr<const NodeReportBatch>> in_flight_;
  int64_t acknowledged_ = 0;        // highest number that needs no keeping
  int64_t last_sequence_ = 0;       // highest number given
  std::deque<NodeReport> front_;    // taken from the spill, older than what is in it
  std::deque<NodeReport> waiting_;  // newer than what is in the spill
  size_t waiting_log_lines_ = 0;
  size_t log_lines_left_out_ = 0;  // since the last line that was taken
  bool spill_failed_ = false;      // and that was said
  size_t spill_again_at_ = 0;      // waiting reports; after a failure
  std::optional<absl::Duration> due_;
};

}  // namespace muster
