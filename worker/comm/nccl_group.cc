#include "worker/comm/nccl_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "worker/comm/long_wait.h"
#include "worker/comm/ready_work.h"

namespace muster {

NcclFamily::NcclFamily(Options options)
    : options_(std::move(options)), watcher_([this] { Watch(); }) {}

NcclFamily::~NcclFamily() {
  {
    MutexLock lock(&state_.mu);
    stopping_ = true;
    changed_.NotifyAll();
  }
  watcher_.join();
  groups_.clear();  // each destroys its communicator
}

void NcclFamily::Add(const std::shared_ptr<NcclGroup>& group) {
  MutexLock lock(&state_.mu);
  groups_.push_back(group);
}

void NcclFamily::Fail(const absl::Status& cause) {
  MutexLock lock(&state_.mu);
  if (state_.FailLocked(cause)) changed_.NotifyAll();
}

NcclComm* NcclFamily::NewPlace() {
  MutexLock lock(&state_.mu);
  places_.push_back(std::make_unique<NcclComm>(nullptr));
  return places_.back().get();
}

void NcclFamily::NoteWork() {
  MutexLock lock(&state_.mu);
  if (has_work_) return;
  has_work_ = true;
  changed_.NotifyAll();
}

absl::Status NcclFamily::Settle(NcclResult result, NcclComm comm, absl::Duration limit,
                                Mutex* lock_mu) {
  const absl::Duration deadline = AbortState::SteadyNow() + limit;
  absl::Duration pause = absl::Microseconds(50);
  const auto ask = [&] {
    NcclResult now = NcclResult::kSuccess;
    const NcclResult answer = api().GetAsyncError(comm, &now);
    return answer == NcclResult::kSuccess ? now : answer;
  };
  // A call may return success while the communicator still works on it (seen with
  // ncclCommInitRankConfig of NCCL 2.28 on one GPU): only its own state tells.
  if (result == NcclResult::kSuccess && comm != nullptr) result = ask();
  while (result == NcclResult::kInProgress) {
    if (AbortState::SteadyNow() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("NCCL was not ready after ", absl::FormatDuration(limit)));
    }
    lock_mu->Unlock();
    absl::Status failure;
    {
      // Sleeps, and wakes at once when the world fails.
      MutexLock lock(&state_.mu);
      CondVar nobody;
      const absl::Status slept =
          state_.Wait(&nobody, AbortState::SteadyNow() + pause, [] { return false; });
      if (!absl::IsDeadlineExceeded(slept)) failure = slept;
      if (!state_.failure_locked().ok()) failure = state_.failure_locked();
    }
    lock_mu->Lock();
    if (!failure.ok()) return failure;
    pause = std::min(pause * 2, options_.poll_interval);
    result = ask();
  }
  if (result == NcclResult::kSuccess) return absl::OkStatus();
  return absl::UnavailableError(api().Explain(result, comm));
}

void NcclFamily::Watch() {
  bool aborted = false;
  for (;;) {
    std::vector<std::shared_ptr<NcclGroup>> groups;
    bool abort_now = false;
    {
      MutexLock lock(&state_.mu);
      while (!stopping_ && !has_work_ && (state_.failure_locked().ok() || aborted)) {
        changed_.Wait(&state_.mu);
      }
      if (!stopping_ && state_.failure_locked().ok()) {
        changed_.WaitFor(&state_.mu, options_.poll_interval);
      }
      if (stopping_) return;
      abort_now = !state_.failure_locked().ok();
      groups = groups_;
      has_work_ = false;
    }
    if (abort_now) {
      for (const auto& group : groups) group->AbortComm();
      aborted = true;
      continue;
    }
    for (const auto& group : groups) {
      const absl::StatusOr<bool> busy = group->PollOnce();
      if (!busy.ok()) Fail(busy.status());
      if (busy.ok() && *busy) NoteWork();
    }
  }
}

struct NcclGroup::Running {
  int64_t sequence = 0;
  absl::Duration limit, deadline;
  CudaEvent done_event = nullptr;  // null once done: it serves another operation then
  bool done = false;
  std::vector<at::Tensor> tensors;
};

class NcclGroup::Handle final : public Work {
 public:
  Handle(std::shared_ptr<NcclFamily> family, std::shared_ptr<NcclGroup> group, RunningPtr running)
      : family_(std::move(family)), group_(std::move(group)), running_(std::move(running)) {}
  absl::Status Wait() override { return group_->Wait(running_); }
  bool IsDone() override { return group_->IsDone(running_); }

 private:
  const std::shared_ptr<NcclFamily> family_;  // outlives the group
  const std::shared_ptr<NcclGroup> group_;
  const RunningPtr running_;
};

NcclGroup::NcclGroup(std::string name, std::vector<int> ranks, int rank, NcclFamily* family)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      rank_(rank),
      family_(family),
      log_(name_, ranks_) {}

NcclGroup::~NcclGroup() {
  NcclApi& api = family_->api();
  const bool healthy = family_->state().failure().ok();
  {
    MutexLock lock(&mu_);
    // An unfinished operation would make Finalize wait for peers; abort never waits.
    bool orderly = healthy && comm_ != nullptr;
    for (const RunningPtr& running : running_) {
      const auto done = api.QueryEvent(running->done_event);
      orderly = orderly && done.ok() && *done;
    }
    if (orderly) {
      orderly = family_->Settle(api.Finalize(comm_), comm_, absl::Seconds(5), &mu_).ok() &&
                api.Destroy(comm_) == NcclResult::kSuccess;
      if (orderly) comm_ = nullptr;
    }
  }
  AbortComm();
  MutexLock lock(&mu_);
  for (const RunningPtr& running : running_) {
    if (running->done_event != nullptr) api.DestroyEvent(running->done_event);
  }
  for (CudaEvent event : spare_events_) api.DestroyEvent(event);
  if (token_ != nullptr) api.Free(token_);
  if (begin_ != nullptr) api.DestroyEvent(begin_);
  if (stream_ != nullptr) api.DestroyStream(stream_);
}

absl::Status NcclGroup::Explained(NcclResult result, const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", family_->api().Explain(result, comm_)));
}

absl::Status NcclGroup::Prepare() {
  ASSIGN_OR_RETURN(stream_, family_->api().CreateStream());
  ASSIGN_OR_RETURN(begin_, family_->api().CreateEvent());
  ASSIGN_OR_RETURN(token_, family_->api().Allocate(1));
  return absl::OkStatus();
}

absl::Status NcclGroup::Join(const NcclId& id) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(Prepare());
  NcclComm* const place = family_->NewPlace();
  const NcclResult result = family_->api().InitRank(place, size(), id, rank_);
  comm_ = *place;
  return Annotate(family_->Settle(result, comm_, family_->options().form_limit, &mu_),
                  absl::StrCat("forming group ", name_));
}

// The child's communicator is there once the parent has settled, and then settles itself.
absl::Status NcclGroup::Split(int color, int key, NcclGroup* child) {
  MutexLock lock(&mu_);
  if (comm_ == nullptr) return family_->state().failure();
  NcclComm* const place = family_->NewPlace();
  const NcclResult result = family_->api().Split(comm_, color, key, place);
  const absl::Status status =
      Annotate(family_->Settle(result, comm_, family_->options().form_limit, &mu_),
               absl::StrCat("splitting group ", name_));
  return child == nullptr ? status : child->Adopt(*place, status);
}

absl::Status NcclGroup::Adopt(NcclComm comm, const absl::Status& parent) {
  MutexLock lock(&mu_);
  comm_ = comm;  // after a failure, too: it must be aborted then
  RETURN_IF_ERROR(parent);
  if (comm_ == nullptr) return absl::InternalError("NCCL made no communicator for a split");
  RETURN_IF_ERROR(Prepare());
  return Annotate(
      family_->Settle(NcclResult::kInProgress, comm_, family_->options().form_limit, &mu_),
      absl::StrCat("forming group ", name_));
}

absl::StatusOr<CudaEvent> NcclGroup::TakeEvent() {
  if (spare_events_.empty()) return family_->api().CreateEvent();
  CudaEvent event = spare_events_.back();
  spare_events_.pop_back();
  return event;
}

WorkPtr NcclGroup::Start(const OpShape& shape, std::vector<at::Tensor> tensors,
                         const Launch& launch, const std::shared_ptr<NcclGroup>& self,
                         std::shared_ptr<NcclFamily> family,
                         absl::Span<const OpTransfer> transfers) {
  auto running = std::make_shared<Running>();
  running->sequence = log_.Start(shape, absl::Now(), transfers);
  running->limit = LongWait::LimitOf(family_->options().operation_limit);
  running->deadline = AbortState::SteadyNow() + running->limit;
  running->tensors = std::move(tensors);
  absl::Status status = family_->state().failure();
  if (status.ok()) {
    MutexLock lock(&mu_);
    status = Launched(running, launch);
    if (!status.ok() && !absl::IsAborted(status)) {
      status = Annotate(status, log_.Name(running->sequence));
    }
  }
  if (!status.ok()) {
    family_->Fail(status);
    status = family_->state().failure();
    log_.Finish(running->sequence, status, absl::Now());
    return MakeReadyWork(std::move(status));
  }
  family_->NoteWork();
  return std::make_shared<Handle>(std::move(family), self, std::move(running));
}

absl::Status NcclGroup::Launched(const RunningPtr& running, const Launch& launch) {
  NcclApi& api = family_->api();
  if (comm_ == nullptr) return absl::AbortedError("the communicator was aborted");
  ASSIGN_OR_RETURN(const CudaStream current, api.CurrentStream());
  RETURN_IF_ERROR(api.RecordEvent(begin_, current));
  RETURN_IF_ERROR(api.StreamWaitEvent(stream_, begin_));
  const NcclResult result = launch(api, comm_, stream_);
  // In progress: the first operation between two ranks connects them. The event may only be
  // recorded behind the kernel.
  RETURN_IF_ERROR(family_->Settle(result, comm_, running->limit, &mu_));
  ASSIGN_OR_RETURN(running->done_event, TakeEvent());
  running_.push_back(running);
  return api.RecordEvent(running->done_event, stream_);
}

absl::Status NcclGroup::Wait(const RunningPtr& running) {
  const OpLog::WaitScope waiting(log_, running->sequence);
  std::vector<at::Tensor> released;  // outlives the lock
  MutexLock lock(&mu_);
  if (running->done) return absl::OkStatus();
  if (absl::Status failure = family_->state().failure(); !failure.ok()) return failure;
  auto current = family_->api().CurrentStream();
  absl::Status status = current.status();
  if (status.ok()) status = family_->api().StreamWaitEvent(*current, running->done_event);
  if (status.ok()) {
    // Whoever gets their memory next uses it behind this wait: all of it belongs to the stream that
    // waits. Held until the watcher looks again, tensors of several layers would pile up.
    released = std::exchange(running->tensors, {});
    return status;
  }
  family_->Fail(Annotate(status, log_.Name(running->sequence)));
  return family_->state().failure();
}

bool NcclGroup::IsDone(const RunningPtr& running) {
  MutexLock lock(&mu_);
  if (running->done || !family_->state().failure().ok()) return true;
  const auto done = family_->api().QueryEvent(running->done_event);
  return !done.ok() || *done;
}

absl::StatusOr<bool> NcclGroup::PollOnce() {
  MutexLock lock(&mu_);
  if (comm_ == nullptr) return false;
  NcclApi& api = family_->api();
  while (!running_.empty()) {
    const RunningPtr& oldest = running_.front();
    auto done = api.QueryEvent(oldest->done_event);
    if (!done.ok()) return Annotate(done.status(), log_.Name(oldest->sequence));
    if (!*done) break;
    oldest->done = true;
    oldest->tensors.clear();
    spare_events_.push_back(std::exchange(oldest->done_event, nullptr));
    log_.Finish(oldest->sequence, absl::OkStatus(), absl::Now());
    running_.pop_front();
  }
  const std::string where =
      running_.empty() ? absl::StrCat("group ", name_) : log_.Name(running_.front()->sequence);
  NcclResult result = NcclResult::kSuccess;
  if (const NcclResult answer = api.GetAsyncError(comm_, &result); answer != NcclResult::kSuccess) {
    result = answer;
  }
  if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
    return Explained(result, where);
  }
  if (!running_.empty() && AbortState::SteadyNow() > running_.front()->deadline) {
    return absl::DeadlineExceededError(
        absl::StrCat(where, ": not done after ", absl::FormatDuration(running_.front()->limit)));
  }
  return !running_.empty();
}

void NcclGroup::AbortComm() {
  MutexLock lock(&mu_);
  if (comm_ == nullptr) return;
  const NcclResult result = family_->api().Abort(std::exchange(comm_, nullptr));
  if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
    MUSTER_LOG(kWarning) << "nccl abort failed group=" << name_
                         << " result=" << static_cast<int>(result);
  }
}

std::string NcclGroup::Describe() { return log_.Describe(absl::Now()); }

}  // namespace muster
