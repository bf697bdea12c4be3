#include "worker/comm/op_progress.h"

#include <utility>

namespace muster {

std::vector<OpProgress::Newest> OpProgress::NewestOperations() const {
  const int64_t now = SteadyNanos();
  MutexLock lock(&mu_);
  std::vector<Newest> all;
  for (const auto& [name, group] : groups_) {
    all.push_back({.group = name,
                   .ranks = group.ranks,
                   .sequence = group.sequence + 1,
                   .operation = group.shape.ToString(),
                   .done = group.done,
                   .age = absl::Nanoseconds(now - group.started_ns)});
  }
  return all;
}

void OpProgress::Listen(OpObserver* behind) {
  MutexLock lock(&mu_);
  if (behind == behind_) return;
  for (Record& record : records_) record.behind = -1;
  behind_ = behind;
}

void OpProgress::Forget() {
  MutexLock lock(&mu_);
  for (Record& record : records_) record = {};
  groups_.clear();
}

int64_t OpProgress::OpStarted(const Start& start) {
  MutexLock lock(&mu_);
  auto it = groups_.find(start.group);
  if (it == groups_.end()) it = groups_.emplace(start.group, Group{.ranks = start.ranks}).first;
  const int64_t number = next_++;
  Group& group = it->second;
  group.shape = start.shape;
  group.sequence = start.sequence;
  group.number = number;
  group.started_ns = SteadyNanos();
  group.done = false;
  Record& record = records_[number % kCapacity];
  record = {.number = number, .group = &group};
  if (behind_ != nullptr) record.behind = behind_->OpStarted(start);
  return number;
}

OpProgress::Record* OpProgress::Find(int64_t op) {
  Record& record = records_[op % kCapacity];
  return record.number == op ? &record : nullptr;
}

void OpProgress::OpFinished(int64_t op) {
  MutexLock lock(&mu_);
  Record* const record = Find(op);
  if (record == nullptr) return;
  if (record->group->number == op) record->group->done = true;
  if (behind_ != nullptr && record->behind >= 0) behind_->OpFinished(record->behind);
}

void OpProgress::OpWaited(int64_t op, int64_t begin_ns) {
  waited_ns_ += SteadyNanos() - begin_ns;
  MutexLock lock(&mu_);
  Record* const record = Find(op);
  if (record != nullptr && behind_ != nullptr && record->behind >= 0)
    behind_->OpWaited(record->behind, begin_ns);
}

}  // namespace muster
