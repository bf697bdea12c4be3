#include "coordinator/core/metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {

JobHistory::JobHistory(int world_size, const HistoryLimits& limits)
    : limits_(limits),
      steps_(limits.max_steps),
      evaluations_(limits.max_results),
      checkpoints_(limits.max_results),
      events_(limits.max_events),
      lines_per_rank_(std::max<size_t>(50, limits.max_log_lines / std::max(1, world_size))) {}

void JobHistory::AddStep(int64_t epoch, const StepMessage& step, absl::Time now) {
  // Timers are kept for the newest step only: they are the bulk of a record.
  if (!steps_.empty()) steps_.entries().back().value.step.timers_ms.clear();
  steps_.DropNewestWhile([&](const StepRecord& r) { return r.step.iteration >= step.iteration; });
  steps_.Add({epoch, now, step});
}

void JobHistory::AddEvaluation(const EvaluationMessage& evaluation) {
  for (auto& entry : evaluations_.entries()) {
    if (entry.value.iteration == evaluation.iteration && entry.value.split == evaluation.split) {
      entry.value = evaluation;
      return;
    }
  }
  evaluations_.Add(evaluation);
}

void JobHistory::AddCheckpoint(const CheckpointMessage& checkpoint) {
  for (auto& entry : checkpoints_.entries()) {
    if (entry.value.iteration == checkpoint.iteration && entry.value.path == checkpoint.path) {
      entry.value = checkpoint;
      return;
    }
  }
  checkpoints_.Add(checkpoint);
}

void JobHistory::AddEvent(JobEvent event) { events_.Add(std::move(event)); }

void JobHistory::AddLogLines(int rank, int64_t epoch, const std::string& worker,
                             const std::vector<std::string>& lines, absl::Time now) {
  auto& ring = logs_.try_emplace(rank, lines_per_rank_).first->second;
  for (const std::string& line : lines) {
    std::string text = line.size() <= limits_.max_log_line
                           ? line
                           : absl::StrCat(line.substr(0, limits_.max_log_line), "...");
    ring.AddAt(next_log_++, {rank, epoch, worker, now, std::move(text)});
  }
}

std::vector<const JobHistory::LogEntry*> JobHistory::Logs(int rank, int64_t since,
                                                          size_t limit) const {
  std::vector<const LogEntry*> result;
  for (const auto& [r, ring] : logs_) {
    if (rank >= 0 && r != rank) continue;
    const auto part = ring.Since(since, limit);
    result.insert(result.end(), part.begin(), part.end());
  }
  std::sort(result.begin(), result.end(),
            [](const LogEntry* a, const LogEntry* b) { return a->index < b->index; });
  if (result.size() > limit) result.resize(limit);
  return result;
}

int64_t JobHistory::oldest_log_index(int rank) const {
  int64_t oldest = next_log_;
  for (const auto& [r, ring] : logs_) {
    if (rank < 0 || r == rank) oldest = std::min(oldest, ring.oldest());
  }
  return oldest;
}

}  // namespace muster
