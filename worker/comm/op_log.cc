#include "worker/comm/op_log.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace muster {

std::string FormatRanks(const std::vector<int>& sorted_ranks) {
  std::string text;
  for (size_t begin = 0; begin < sorted_ranks.size();) {
    size_t end = begin + 1;
    while (end < sorted_ranks.size() && sorted_ranks[end] == sorted_ranks[end - 1] + 1) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ", ", sorted_ranks[begin]);
    if (end - begin > 1) absl::StrAppend(&text, "-", sorted_ranks[end - 1]);
    begin = end;
  }
  return text;
}

int64_t SteadyNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string OpShape::ToString() const {
  std::string text = op;
  if (*dtype == '\0') return text;
  absl::StrAppend(&text, " ", num_elements_in);
  if (num_elements_out != 0) absl::StrAppend(&text, " -> ", num_elements_out);
  absl::StrAppend(&text, " ", dtype);
  return text;
}

OpLog::OpLog(std::string group, std::vector<int> ranks, int capacity)
    : group_(std::move(group)), ranks_(std::move(ranks)), records_(capacity) {
  for (Record& record : records_) record.arrived.resize(ranks_.size());
}

OpLog::Record* OpLog::Find(int64_t sequence) {
  const int64_t capacity = static_cast<int64_t>(records_.size());
  if (sequence < 0 || sequence >= next_ || sequence < next_ - capacity) return nullptr;
  return &records_[sequence % capacity];
}

int64_t OpLog::Start(const OpShape& shape, absl::Time now, absl::Span<const OpTransfer> transfers) {
  MutexLock lock(&mu_);
  const int64_t sequence = next_++;
  Record& record = *Find(sequence);
  record.shape = shape;
  record.state = State::kStarted;
  record.started = now;
  record.arrivals_known = false;
  std::fill(record.arrived.begin(), record.arrived.end(), false);
  record.observed_as = -1;
  if (observer_ != nullptr) {
    record.observed_as = observer_->OpStarted({group_, ranks_, shape, sequence, transfers});
  }
  return sequence;
}

void OpLog::Arrived(int64_t sequence, int member) {
  MutexLock lock(&mu_);
  Record* const record = Find(sequence);
  if (record == nullptr) return;
  record->arrivals_known = true;
  record->arrived[member] = true;
}

void OpLog::Finish(int64_t sequence, const absl::Status& status, absl::Time now) {
  MutexLock lock(&mu_);
  Record* const record = Find(sequence);
  if (record == nullptr) return;
  record->state = status.ok() ? State::kDone : State::kFailed;
  record->finished = now;
  if (observer_ != nullptr && record->observed_as >= 0) observer_->OpFinished(record->observed_as);
}

void OpLog::Observe(OpObserver* observer) {
  MutexLock lock(&mu_);
  if (observer == observer_) return;
  for (Record& record : records_) record.observed_as = -1;
  observer_ = observer;
  observed_ = observer != nullptr;
}

void OpLog::Waited(int64_t sequence, int64_t begin_ns) {
  MutexLock lock(&mu_);
  const Record* const record = Find(sequence);
  if (record == nullptr || observer_ == nullptr || record->observed_as < 0) return;
  observer_->OpWaited(record->observed_as, begin_ns);
}

std::string OpLog::Name(int64_t sequence) const {
  MutexLock lock(&mu_);
  const Record* const record = const_cast<OpLog*>(this)->Find(sequence);
  return absl::StrCat("group ", group_, ", sequence ", sequence,
                      record == nullptr ? "" : absl::StrCat(", ", record->shape.ToString()));
}

std::string OpLog::DescribeRecord(int64_t sequence, const Record& record, absl::Time now) const {
  std::string line =
      absl::StrCat("group ", group_, " sequence ", sequence, " ", record.shape.ToString(), " ");
  if (record.state == State::kDone) {
    absl::StrAppend(&line, "done in ", absl::FormatDuration(record.finished - record.started));
    return line;
  }
  if (record.state == State::kFailed) {
    absl::StrAppend(&line, "failed after ", absl::FormatDuration(record.finished - record.started));
  } else {
    absl::StrAppend(&line, "started ", absl::FormatDuration(now - record.started), " ago");
  }
  if (!record.arrivals_known) return line;
  std::vector<int> here, missing;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    (record.arrived[i] ? here : missing).push_back(ranks_[i]);
  }
  std::sort(here.begin(), here.end());
  std::sort(missing.begin(), missing.end());
  absl::StrAppend(&line, "; arrived: ranks ", FormatRanks(here));
  if (!missing.empty()) absl::StrAppend(&line, "; missing: ranks ", FormatRanks(missing));
  return line;
}

std::string OpLog::Describe(absl::Time now) const {
  MutexLock lock(&mu_);
  const int64_t capacity = static_cast<int64_t>(records_.size());
  std::string text;
  for (int64_t i = std::max<int64_t>(0, next_ - capacity); i < next_; ++i) {
    absl::StrAppend(&text, DescribeRecord(i, records_[i % capacity], now), "\n");
  }
  return text;
}

}  // namespace muster
