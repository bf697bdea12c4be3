// What a job has done so far: step records, evaluations, checkpoints, events, log lines. All
// bounded. A step that is done again after a recovery replaces its former record and all later ones
// (those steps were discarded), under a new index: readers who go on from an index see it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/control/messages.h"
#include "coordinator/core/ring.h"

namespace muster {

struct StepRecord {
  int64_t epoch = 0;
  absl::Time time;
  StepMessage step;
};

struct JobEvent {
  absl::Time time;
  int64_t epoch = 0;
  std::string kind, text;
  int rank = -1;  // -1: of the job
  std::string worker;
};

struct TrainerLine {
  int rank = 0;
  int64_t epoch = 0;
  std::string worker;
  absl::Time time;
  std::string text;
};

struct HistoryLimits {
  size_t max_steps = 50'000;
  size_t max_events = 2'000;
  size_t max_results = 1'000;     // evaluations; checkpoints
  size_t max_log_lines = 20'000;  // of all ranks; each rank has an equal share, 50 at least
  size_t max_log_line = 4'096;    // bytes; the rest is cut
};

class JobHistory {
 public:
  JobHistory(int world_size, const HistoryLimits& limits);

  // nullptr: it is not among those that are held.
  const StepRecord* FindStep(int64_t iteration) const;
  void AddStep(int64_t epoch, const StepMessage& step, absl::Time now);
  // The same iteration and split again: the last values count, under a new index.
  void AddEvaluation(const EvaluationMessage& evaluation);
  void AddCheckpoint(const CheckpointMessage& checkpoint);
  void AddEvent(JobEvent event);
  void AddLogLines(int rank, int64_t epoch, const std::string& worker,
                   const std::vector<std::string>& lines, absl::Time now);

  // As read back from the ledger, each kind in the order of its indexes (at least next()). A step
  // or a result that was done again replaces its former one here too.
  void RestoreStep(int64_t index, StepRecord record);
  void RestoreEvaluation(int64_t index, const EvaluationMessage& evaluation);
  void RestoreCheckpoint(int64_t index, const CheckpointMessage& checkpoint);
  void RestoreEvent(int64_t index, JobEvent event);

  const Ring<StepRecord>& steps() const { return steps_; }
  const Ring<JobEvent>& events() const { return events_; }
  const Ring<EvaluationMessage>& evaluations() const { return evaluations_; }
  const Ring<CheckpointMessage>& checkpoints() const { return checkpoints_; }

  using LogEntry = Ring<TrainerLine>::Entry;
  // Lines with index >= since of one rank (-1: of all), by index, at most `limit`.
  std::vector<const LogEntry*> Logs(int rank, int64_t since, size_t limit) const;
  // The newest ones of one rank and epoch, oldest first.
  std::vector<std::string> LastLines(int rank, int64_t epoch, size_t limit) const;
  int64_t next_log_index() const { return next_log_; }
  int64_t oldest_log_index(int rank) const;

 private:
  const HistoryLimits limits_;
  Ring<StepRecord> steps_;
  Ring<EvaluationMessage> evaluations_;
  Ring<CheckpointMessage> checkpoints_;
  Ring<JobEvent> events_;
  const size_t lines_per_rank_;
  int64_t next_log_ = 1;                   // shared by the ranks' lists
  std::map<int, Ring<TrainerLine>> logs_;  // by rank, made with its first line
};

}  // namespace muster
