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

const StepRecord* JobHistory::FindStep(int64_t iteration) const {
  const auto& entries = steps_.entries();  // iterations rise
  const auto found = std::lower_bound(
      entries.begin(), entries.end(), iteration,
      [](const auto& entry, int64_t wanted) { return entry.value.step.iteration < wanted; });
  const bool there = found != entries.end() && found->value.step.iteration == iteration;
  return there ? &found->value : nullptr;
}

void JobHistory::AddStep(int64_t epoch, const StepMessage& step, absl::Time now) {
  RestoreStep(steps_.next(), {epoch, now, step});
}

void JobHistory::AddEvaluation(const EvaluationMessage& evaluation) {
  RestoreEvaluation(evaluations_.next(), evaluation);
}

void JobHistory::AddCheckpoint(const CheckpointMessage& checkpoint) {
  RestoreCheckpoint(checkpoints_.next(), checkpoint);
}

void JobHistory::RestoreStep(int64_t index, StepRecord record) {
  // Timers are kept for the newest step only: they are the bulk of a record.
  if (!steps_.empty()) steps_.entries().back().value.step.timers_ms.clear();
  const int64_t iteration = record.step.iteration;
  steps_.DropNewestWhile([&](const StepRecord& r) { return r.step.iteration >= iteration; });
  steps_.AddAt(index, std::move(record));
}

void JobHistory::RestoreEvaluation(int64_t index, const EvaluationMessage& evaluation) {
  evaluations_.DropIf([&](const EvaluationMessage& known) {
    return known.iteration == evaluation.iteration && known.split == evaluation.split;
  });
  evaluations_.AddAt(index, evaluation);
}

void JobHistory::RestoreCheckpoint(int64_t index, const CheckpointMessage& checkpoint) {
  checkpoints_.DropIf([&](const CheckpointMessage& known) {
    return known.iteration == checkpoint.iteration && known.path == checkpoint.path;
  });
  checkpoints_.AddAt(index, checkpoint);
}

void JobHistory::RestoreEvent(int64_t index, JobEvent event) {
  events_.AddAt(index, std::move(event));
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

std::vector<std::string> JobHistory::LastLines(int rank, int64_t epoch, size_t limit) const {
  std::vector<std::string> lines;
  const auto found = logs_.find(rank);
  if (found == logs_.end()) return lines;
  const auto& entries = found->second.entries();
  for (auto it = entries.rbegin(); it != entries.rend() && lines.size() < limit; ++it) {
    if (it->value.epoch != epoch) break;
    lines.push_back(it->value.text);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

int64_t JobHistory::oldest_log_index(int rank) const {
  int64_t oldest = next_log_;
  for (const auto& [r, ring] : logs_) {
    if (rank < 0 || r == rank) oldest = std::min(oldest, ring.oldest());
  }
  return oldest;
}

}  // namespace muster
