#include "worker/core/report_buffer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

constexpr size_t kMaxLinesAReport = 200;

// These decide what happens to a job: sent without delay, and never left out.
bool IsOutcome(const TrainerReport& report) {
  return std::holds_alternative<TrainerExited>(report.report) ||
         std::holds_alternative<DoneMessage>(report.report) ||
         std::holds_alternative<FailedMessage>(report.report) ||
         std::holds_alternative<PublishUniqueIdMessage>(report.report);
}

}  // namespace

void ReportBuffer::Add(TrainerReport report, absl::Duration now) {
  const absl::Duration due = IsOutcome(report) ? now : now + options_.batch_delay;
  due_ = due_ ? std::min(*due_, due) : due;

  if (auto* log = std::get_if<LogLines>(&report.report)) {
    if (waiting_log_lines_ + log->lines.size() > options_.max_waiting_log_lines) {
      log_lines_left_out_ += log->lines.size();
      return;
    }
    if (log_lines_left_out_ > 0) {
      log->lines.insert(log->lines.begin(),
                        absl::StrCat("(", std::exchange(log_lines_left_out_, 0),
                                     " lines are left out here; the worker's log file has them)"));
    }
    waiting_log_lines_ += log->lines.size();
    if (!waiting_.empty() && waiting_.back().assignment == report.assignment) {
      auto* last = std::get_if<LogLines>(&waiting_.back().report);
      if (last != nullptr && last->lines.size() + log->lines.size() <= kMaxLinesAReport) {
        std::move(log->lines.begin(), log->lines.end(), std::back_inserter(last->lines));
        return;
      }
    }
  }
  waiting_.push_back(std::move(report));
  if (waiting_.size() > options_.max_waiting) MakeRoom();
}

// Rare (a coordinator that is away for very long), so a pass over all is cheap enough: it frees a
// tenth at once.
void ReportBuffer::MakeRoom() {
  size_t to_free = options_.max_waiting / 10 + 1;
  const auto drop = [&](auto may_go) {
    std::deque<TrainerReport> kept;
    for (TrainerReport& report : waiting_) {
      if (to_free > 0 && may_go(report)) {
        --to_free;
      } else {
        kept.push_back(std::move(report));
      }
    }
    waiting_ = std::move(kept);
  };
  const auto is_log = [](const TrainerReport& report) {
    return std::holds_alternative<LogLines>(report.report);
  };
  const size_t before = waiting_.size();
  drop(is_log);
  drop([](const TrainerReport& report) { return !IsOutcome(report); });
  waiting_log_lines_ = 0;
  for (const TrainerReport& report : waiting_) {
    if (is_log(report)) waiting_log_lines_ += std::get<LogLines>(report.report).lines.size();
  }
  const size_t dropped = before - waiting_.size();
  if (dropped == 0) return;
  TrainerReport note;
  note.assignment = waiting_.back().assignment;
  note.rank = waiting_.back().rank;
  note.report = EventMessage{
      .epoch = note.assignment.epoch,
      .kind = "reports_dropped",
      .text = absl::StrCat(dropped,
                           " reports of node's trainers were dropped: the coordinator was "
                           "away for too long")};
  waiting_.push_back(std::move(note));
}

std::vector<std::shared_ptr<const ReportBatch>> ReportBuffer::TakeDue(absl::Duration now) {
  std::vector<std::shared_ptr<const ReportBatch>> due;
  if (!due_ || now < *due_) return due;
  while (!waiting_.empty() && in_flight_.size() < options_.max_batches_in_flight) {
    auto batch = std::make_shared<ReportBatch>();
    batch->sequence = ++last_sequence_;
    while (!waiting_.empty() && batch->reports.size() < options_.max_batch_reports) {
      if (const auto* log = std::get_if<LogLines>(&waiting_.front().report)) {
        waiting_log_lines_ -= std::min(waiting_log_lines_, log->lines.size());
      }
      batch->reports.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    in_flight_.push_back(batch);
    due.push_back(std::move(batch));
  }
  if (waiting_.empty()) due_.reset();
  return due;
}

std::optional<absl::Duration> ReportBuffer::NextDue() const {
  if (in_flight_.size() >= options_.max_batches_in_flight) return std::nullopt;  // an ack is needed
  return due_;
}

void ReportBuffer::Acknowledge(int64_t through) {
  while (!in_flight_.empty() && in_flight_.front()->sequence <= through) {
    acknowledged_ = in_flight_.front()->sequence;
    in_flight_.pop_front();
  }
}

std::optional<std::vector<std::shared_ptr<const ReportBatch>>> ReportBuffer::Resume(
    int64_t through) {
  if (through < acknowledged_ || through > last_sequence_) return std::nullopt;
  Acknowledge(through);
  return std::vector<std::shared_ptr<const ReportBatch>>(in_flight_.begin(), in_flight_.end());
}

void ReportBuffer::Reset() {
  in_flight_.clear();
  waiting_.clear();
  acknowledged_ = last_sequence_ = 0;
  waiting_log_lines_ = log_lines_left_out_ = 0;
  due_.reset();
}

}  // namespace muster
