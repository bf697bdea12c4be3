#include "worker/comm/thread_group.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "worker/comm/long_wait.h"

namespace muster {

struct ThreadGroup::Op {
  int member = 0;
  int channel = 0;
  int64_t sequence = 0;  // in the member's log
  absl::Duration limit, deadline;
  Collective collective;            // of a collective
  int64_t number = -1;              // its number in the group's order; -1: a batch
  std::vector<Transfer> transfers;  // of a batch
  // Guarded by the state's mutex.
  int parts_left = 1;
  bool done = false;
  CondVar changed;
};

struct ThreadGroup::Slot {
  std::vector<OpPtr> arrived;  // by member
  int num_arrived = 0;
  OpPtr first;
};

struct ThreadGroup::Mail {
  struct Letter {
    OpPtr op;  // null for a buffered send: it was done when it was posted
    Transfer transfer;
    int64_t sequence = 0;
  };
  std::deque<Letter> sends, receives;  // at most one of them has any
};

struct ThreadGroup::Job {
  std::shared_ptr<Slot> slot;  // a complete collective, or
  Mail::Letter send, receive;  // a pair
};

namespace {

// Tensor code throws; here it must become a failure of all, not the end of a thread.
template <class Body>
absl::Status Guarded(Body body) {
  try {
    return body();
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

}  // namespace

ThreadGroup::ThreadGroup(std::string name, std::vector<int> ranks,
                         std::shared_ptr<AbortState> state, ThreadWorldOptions options, Move move)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      state_(std::move(state)),
      options_(options),
      move_(std::move(move)),
      members_(ranks_.size()) {
  for (Member& member : members_) member.log = std::make_unique<OpLog>(name_, ranks_);
}

ThreadGroup::OpPtr ThreadGroup::PostCollective(int member, Collective collective) {
  auto op = std::make_shared<Op>();
  op->collective = std::move(collective);
  op->number = 0;
  return Enqueue(member, std::move(op));
}

ThreadGroup::OpPtr ThreadGroup::PostBatch(int member, std::vector<Transfer> transfers,
                                          int channel) {
  auto op = std::make_shared<Op>();
  op->channel = channel;
  op->collective.shape.op = "send_recv";
  op->parts_left = static_cast<int>(transfers.size());
  op->transfers = std::move(transfers);
  return Enqueue(member, std::move(op));
}

ThreadGroup::OpPtr ThreadGroup::Enqueue(int member, OpPtr op) {
  op->member = member;
  op->limit = LongWait::LimitOf(options_.operation_limit);
  op->deadline = AbortState::SteadyNow() + op->limit;
  std::vector<OpTransfer> observed;
  if (members_[member].log->observed()) {
    for (const Transfer& transfer : op->transfers)
      observed.push_back({transfer.is_send, transfer.peer, op->channel, transfer.bytes});
  }
  std::deque<Job> jobs;
  {
    MutexLock lock(&state_->mu);
    Member& mine = members_[member];
    op->sequence = mine.log->Start(op->collective.shape, absl::Now(), observed);
    if (op->number >= 0) op->number = mine.next_collective++;
    if (!state_->failure_locked().ok()) return op;  // Wait tells the failure
    mine.lanes[op->channel].queue.push_back(op);
    Pump(member, op->channel, &jobs);
  }
  Run(std::move(jobs));
  return op;
}

void ThreadGroup::Pump(int member, int channel, std::deque<Job>* jobs) {
  Lane& lane = members_[member].lanes[channel];
  while (!lane.queue.empty() && (!options_.blocking_sends || lane.unfinished == 0)) {
    OpPtr op = std::move(lane.queue.front());
    lane.queue.pop_front();
    ++lane.unfinished;
    Arrive(op, jobs);
  }
}

void ThreadGroup::Arrive(const OpPtr& op, std::deque<Job>* jobs) {
  if (op->number < 0) {
    if (op->transfers.empty()) {
      op->parts_left = 1;
      PartDone(op, jobs);
      return;
    }
    // From here on the letters own the parts, so that a handle does not keep them once they are
    // delivered. PartDone may finish the operation while the loop still runs: `op` keeps it alive.
    const std::vector<Transfer> transfers = std::exchange(op->transfers, {});
    for (const Transfer& transfer : transfers) ArriveTransfer(op, transfer, jobs);
    return;
  }
  std::shared_ptr<Slot>& slot = slots_[op->number];
  if (slot == nullptr) {
    slot = std::make_shared<Slot>();
    slot->arrived.resize(ranks_.size());
    slot->first = op;
  }
  const std::string& expected = slot->first->collective.signature;
  if (expected != op->collective.signature) {
    state_->FailLocked(absl::InvalidArgumentError(absl::StrCat(
        "group ", name_, ": collective mismatch: rank ", ranks_[op->member], " started ",
        op->collective.signature, " where rank ", ranks_[slot->first->member], " started ",
        expected, "; all members must issue the same operations in the same order")));
    return;
  }
  slot->arrived[op->member] = op;
  ++slot->num_arrived;
  if (slot->num_arrived < size()) return;
  jobs->push_back({slot, {}, {}});
  slots_.erase(op->number);
}

void ThreadGroup::ArriveTransfer(const OpPtr& op, const Transfer& transfer, std::deque<Job>* jobs) {
  const int from = transfer.is_send ? op->member : transfer.peer;
  const int to = transfer.is_send ? transfer.peer : op->member;
  std::shared_ptr<Mail>& mail = mail_[{from, to, op->channel}];
  if (mail == nullptr) mail = std::make_shared<Mail>();
  const bool buffered = transfer.is_send && !options_.blocking_sends;
  Mail::Letter letter{buffered ? nullptr : op, transfer, op->sequence};
  std::deque<Mail::Letter>& others = transfer.is_send ? mail->receives : mail->sends;
  if (others.empty()) {
    (transfer.is_send ? mail->sends : mail->receives).push_back(std::move(letter));
  } else {
    Mail::Letter other = std::move(others.front());
    others.pop_front();
    if (other.transfer.signature != transfer.signature) {
      state_->FailLocked(absl::InvalidArgumentError(
          absl::StrCat("group ", name_, ": rank ", ranks_[from], " sends ",
                       transfer.is_send ? transfer.signature : other.transfer.signature,
                       " but rank ", ranks_[to], " receives ",
                       transfer.is_send ? other.transfer.signature : transfer.signature)));
      return;
    }
    if (transfer.is_send) {
      jobs->push_back({nullptr, std::move(letter), std::move(other)});
    } else {
      jobs->push_back({nullptr, std::move(other), std::move(letter)});
    }
  }
  if (buffered) PartDone(op, jobs);
}

void ThreadGroup::PartDone(const OpPtr& op, std::deque<Job>* jobs) {
  if (--op->parts_left > 0) return;
  op->done = true;
  op->changed.NotifyAll();
  Member& mine = members_[op->member];
  mine.log->Finish(op->sequence, absl::OkStatus(), absl::Now());
  --mine.lanes[op->channel].unfinished;
  if (options_.blocking_sends) Pump(op->member, op->channel, jobs);
}

void ThreadGroup::Run(std::deque<Job> jobs) {
  while (!jobs.empty()) {
    Job job = std::move(jobs.front());
    jobs.pop_front();
    absl::Status status;
    if (job.slot != nullptr) {
      std::vector<ThreadPartPtr> parts;
      for (const OpPtr& op : job.slot->arrived) parts.push_back(op->collective.part);
      const Collective& first = job.slot->first->collective;
      status = Guarded([&] { return first.combine(parts); });
      if (!status.ok()) status = Annotate(status, first.signature);
    } else {
      status = Guarded([&] { return move_(*job.receive.transfer.part, *job.send.transfer.part); });
      // Before anyone learns that it is done: who waited holds the last reference then.
      job.receive.transfer.part.reset();
      job.send.transfer.part.reset();
      if (!status.ok()) status = Annotate(status, "send_recv");
    }
    MutexLock lock(&state_->mu);
    if (!status.ok()) {
      state_->FailLocked(Annotate(status, absl::StrCat("group ", name_)));
      return;
    }
    if (job.slot != nullptr) {
      for (const OpPtr& op : job.slot->arrived) PartDone(op, &jobs);
    } else {
      if (job.send.op != nullptr) PartDone(job.send.op, &jobs);
      PartDone(job.receive.op, &jobs);
    }
  }
}

absl::Status ThreadGroup::Wait(const OpPtr& op) {
  const OpLog::WaitScope waiting(*members_[op->member].log, op->sequence);
  MutexLock lock(&state_->mu);
  absl::Status status = state_->Wait(&op->changed, op->deadline, [&] { return op->done; });
  if (status.ok()) return status;
  OpLog& log = *members_[op->member].log;
  if (absl::IsDeadlineExceeded(status) && state_->failure_locked().ok()) {
    state_->FailLocked(
        absl::DeadlineExceededError(absl::StrCat(log.Name(op->sequence), ": not done after ",
                                                 absl::FormatDuration(op->limit), Missing(*op))));
  }
  log.Finish(op->sequence, state_->failure_locked(), absl::Now());
  return state_->failure_locked();
}

std::string ThreadGroup::Missing(const Op& op) {
  const auto slot = slots_.find(op.number);
  if (slot == slots_.end() || slot->second->arrived[op.member] == nullptr) {
    return "; it waits for a peer or for an earlier operation of this rank";
  }
  std::vector<int> missing;
  for (int i = 0; i < size(); ++i) {
    if (slot->second->arrived[i] == nullptr) missing.push_back(ranks_[i]);
  }
  return absl::StrCat("; missing: ranks ", FormatRanks(missing));
}

bool ThreadGroup::IsDone(const OpPtr& op) {
  MutexLock lock(&state_->mu);
  return op->done || !state_->failure_locked().ok();
}

std::string ThreadGroup::Describe(int member) {
  MutexLock lock(&state_->mu);
  OpLog& log = *members_[member].log;
  for (const auto& [number, slot] : slots_) {
    const OpPtr& mine = slot->arrived[member];
    if (mine == nullptr) continue;
    for (int i = 0; i < size(); ++i) {
      if (slot->arrived[i] != nullptr) log.Arrived(mine->sequence, i);
    }
  }
  return log.Describe(absl::Now());
}

absl::Status ThreadGroup::Refuse(const absl::Status& why) {
  state_->Fail(Annotate(why, absl::StrCat("group ", name_)));
  return state_->failure();
}

}  // namespace muster
