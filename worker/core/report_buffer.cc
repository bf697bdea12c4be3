#include "worker/core/report_buffer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

constexpr size_t kMaxLinesAReport = 200;
constexpr int64_t kMaxMadeUpBatches = 1000;

// These decide what happens to a job, and are never left out.
bool IsOutcome(const NodeReport& report) {
  return std::holds_alternative<TrainerExited>(report.report) ||
         std::holds_alternative<DoneMessage>(report.report) ||
         std::holds_alternative<FailedMessage>(report.report) ||
         std::holds_alternative<PublishUniqueIdMessage>(report.report);
}

// Somebody waits for these while all ranks of a job stand still.
bool IsUrgent(const NodeReport& report) {
  const auto* phase = std::get_if<PhaseMessage>(&report.report);
  return IsOutcome(report) || std::holds_alternative<TrainerProbed>(report.report) ||
         std::holds_alternative<RestoredMessage>(report.report) ||
         std::holds_alternative<ExamineMessage>(report.report) ||
         (phase != nullptr && phase->phase == "yielded");
}

}  // namespace

void ReportBuffer::Add(NodeReport report, absl::Duration now) {
  const absl::Duration due = IsUrgent(report) ? now : now + options_.batch_delay;
  due_ = due_ ? std::min(*due_, due) : due;

  if (auto* log = std::get_if<NodeLogLines>(&report.report)) {
    if (waiting_log_lines_ + log->lines.size() > options_.max_waiting_log_lines &&
        (connected_ || !Spill())) {
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
      auto* last = std::get_if<NodeLogLines>(&waiting_.back().report);
      if (last != nullptr && last->lines.size() + log->lines.size() <= kMaxLinesAReport) {
        std::move(log->lines.begin(), log->lines.end(), std::back_inserter(last->lines));
        return;
      }
    }
  }
  waiting_.push_back(std::move(report));
  if (waiting_.size() >= options_.spill_at) Spill();
  if (waiting_.size() > options_.max_waiting) MakeRoom();
}

bool ReportBuffer::NothingWaits() const {
  return front_.empty() && waiting_.empty() &&
         (options_.spill == nullptr || options_.spill->empty());
}

bool ReportBuffer::Spill() {
  const bool stalled = !connected_ || in_flight_.size() >= options_.max_batches_in_flight;
  if (options_.spill == nullptr || !stalled || waiting_.empty()) return false;
  if (waiting_.size() < spill_again_at_) return false;
  const absl::Status status = options_.spill->Append(waiting_);
  if (status.ok()) {
    waiting_.clear();
    waiting_log_lines_ = 0;
    spill_again_at_ = 0;
    spill_failed_ = false;
    return true;
  }
  spill_again_at_ = waiting_.size() + options_.spill_at;
  if (!std::exchange(spill_failed_, true)) {
    waiting_.push_back(
        NoteLike(waiting_.back(), "spill_failed",
                 absl::StrCat("the node's reports can't be written to its state folder while the "
                              "coordinator is away, up to ",
                              options_.max_waiting,
                              " are kept in memory: ", absl::string_view(status.message()))));
  }
  return false;
}

void ReportBuffer::TakeFromSpill() {
  ReportSpill::Taken taken = options_.spill->TakeOldest();
  NodeReport owner{.assignment = taken.first, .rank = taken.rank, .report = NodeLogLines{}};
  if (taken.unreadable > 0) {
    front_.push_back(NoteLike(owner, "reports_dropped",
                              absl::StrCat(taken.unreadable,
                                           " reports of the node's trainers were damaged in its "
                                           "state folder while the coordinator was away")));
  }
  if (taken.log_lines_left_out > 0) {
    owner.report =
        NodeLogLines{{absl::StrCat("(", taken.log_lines_left_out,
                                   " lines are left out here; the worker's log file has them)")}};
    front_.push_back(std::move(owner));
  }
  for (NodeReport& report : taken.reports) front_.push_back(std::move(report));
}

NodeReport ReportBuffer::NoteLike(const NodeReport& report, std::string kind,
                                  std::string text) const {
  return {.assignment = report.assignment,
          .rank = report.rank,
          .report = EventMessage{
              .epoch = report.assignment.epoch, .kind = std::move(kind), .text = std::move(text)}};
}

// Rare (a coordinator that is away for very long), so a pass over all is cheap enough: it frees a
// tenth at once.
void ReportBuffer::MakeRoom() {
  size_t to_free = options_.max_waiting / 10 + 1;
  const auto drop = [&](auto may_go) {
    std::deque<NodeReport> kept;
    for (NodeReport& report : waiting_) {
      if (to_free > 0 && may_go(report)) {
        --to_free;
      } else {
        kept.push_back(std::move(report));
      }
    }
    waiting_ = std::move(kept);
  };
  const auto is_log = [](const NodeReport& report) {
    return std::holds_alternative<NodeLogLines>(report.report);
  };
  const size_t before = waiting_.size();
  drop(is_log);
  drop([](const NodeReport& report) { return !IsOutcome(report); });
  waiting_log_lines_ = 0;
  for (const NodeReport& report : waiting_) {
    if (is_log(report)) waiting_log_lines_ += std::get<NodeLogLines>(report.report).lines.size();
  }
  const size_t dropped = before - waiting_.size();
  if (dropped == 0) return;
  waiting_.push_back(NoteLike(waiting_.back(), "reports_dropped",
                              absl::StrCat(dropped,
                                           " reports of the node's trainers were dropped: the "
                                           "coordinator was away for too long")));
}

std::vector<std::shared_ptr<const NodeReportBatch>> ReportBuffer::TakeDue(absl::Duration now) {
  std::vector<std::shared_ptr<const NodeReportBatch>> due;
  if (!due_ || now < *due_) return due;
  while (!NothingWaits() && in_flight_.size() < options_.max_batches_in_flight) {
    auto batch = std::make_shared<NodeReportBatch>();
    batch->sequence = ++last_sequence_;
    while (batch->reports.size() < options_.max_batch_reports) {
      while (front_.empty() && options_.spill != nullptr && !options_.spill->empty()) {
        TakeFromSpill();
      }
      std::deque<NodeReport>& source = front_.empty() ? waiting_ : front_;
      if (source.empty()) break;
      const auto* log = std::get_if<NodeLogLines>(&source.front().report);
      if (log != nullptr && &source == &waiting_) {
        waiting_log_lines_ -= std::min(waiting_log_lines_, log->lines.size());
      }
      batch->reports.push_back(std::move(source.front()));
      source.pop_front();
    }
    in_flight_.push_back(batch);
    due.push_back(std::move(batch));
  }
  if (NothingWaits()) due_.reset();
  return due;
}

std::optional<absl::Duration> ReportBuffer::NextDue() const {
  if (in_flight_.size() >= options_.max_batches_in_flight) return std::nullopt;  // an ack is needed
  return due_;
}

void ReportBuffer::Acknowledge(int64_t through) {
  while (!in_flight_.empty() && in_flight_.front()->sequence <= through) {
    acknowledged_ = in_flight_.front()->sequence;
    kept_.push_back(std::move(in_flight_.front()));
    if (kept_.size() > options_.keep_acknowledged) kept_.pop_front();
    in_flight_.pop_front();
  }
}

std::optional<std::vector<std::shared_ptr<const NodeReportBatch>>> ReportBuffer::Resume(
    int64_t through) {
  if (through < 0 || through > last_sequence_) return std::nullopt;
  if (acknowledged_ - through - int64_t(kept_.size()) > kMaxMadeUpBatches) return std::nullopt;
  Acknowledge(through);
  while (acknowledged_ > through) {
    if (!kept_.empty()) {
      in_flight_.push_front(std::move(kept_.back()));
      kept_.pop_back();
    } else {
      auto made_up = std::make_shared<NodeReportBatch>();
      made_up->sequence = acknowledged_;
      in_flight_.push_front(std::move(made_up));
    }
    --acknowledged_;
  }
  connected_ = true;
  return std::vector<std::shared_ptr<const NodeReportBatch>>(in_flight_.begin(), in_flight_.end());
}

void ReportBuffer::Reset() {
  kept_.clear();
  in_flight_.clear();
  front_.clear();
  if (options_.spill != nullptr) options_.spill->Clear();
  waiting_.clear();
  connected_ = spill_failed_ = false;
  spill_again_at_ = 0;
  acknowledged_ = last_sequence_ = 0;
  waiting_log_lines_ = log_lines_left_out_ = 0;
  due_.reset();
}

}  // namespace muster
