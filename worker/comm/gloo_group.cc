#include "worker/comm/gloo_group.h"

#include <ATen/core/ivalue.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "worker/comm/gloo_lingering.h"
#include "worker/comm/gloo_running.h"
#include "worker/comm/gloo_store.h"
#include "worker/comm/long_wait.h"
#include "worker/comm/ready_work.h"

namespace muster {
namespace {

// FNV-1a: the same on all ranks and builds, unlike std::hash.
uint64_t Fingerprint(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

// On loopback each group of each process gets an address of its own in 127/8: a late connection of
// an older epoch then never reaches a newer group.
std::string GroupHost(const GlooFamily::Options& options, const std::string& group_key) {
  if (!absl::StartsWith(options.host, "127.")) return options.host;
  const uint64_t hash = Fingerprint(absl::StrCat(group_key, "/", options.epoch, "/", getpid()));
  return absl::StrCat("127.", 1 + hash % 254, ".", (hash >> 16) % 256, ".", 2 + (hash >> 32) % 253);
}

// torch's errors carry a stack trace after the first line.
std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

absl::StatusCode CodeOf(const std::string& gloo_message) {
  const bool timed_out =
      absl::StrContains(gloo_message, "imed out") || absl::StrContains(gloo_message, "imeout");
  return timed_out ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable;
}

}  // namespace

std::shared_ptr<GlooGroup> GlooFamily::FindOrMake(const std::string& name,
                                                  const std::vector<int>& ranks, int rank) {
  MutexLock lock(&mu_);
  std::shared_ptr<GlooGroup>& group = groups_[ranks];
  if (group == nullptr) {
    group = std::make_shared<GlooGroup>(name, ranks, rank, shared_from_this());
  }
  return group;
}

GlooFamily::GlooFamily(Options options)
    : options_(std::move(options)),
      state_(options_.state != nullptr ? options_.state : std::make_shared<AbortState>()) {}

std::shared_ptr<GlooFamily> GlooFamily::Make(Options options) {
  std::shared_ptr<GlooFamily> family(new GlooFamily(std::move(options)));
  // Never removed: the last reference may go inside of it.
  family->state_->AddListener([weak = std::weak_ptr<GlooFamily>(family)] {
    if (const auto alive = weak.lock()) alive->RetireAll();
  });
  return family;
}

void GlooFamily::RetireAll() {
  std::vector<std::shared_ptr<GlooGroup>> groups;
  {
    MutexLock lock(&mu_);
    for (const auto& [ranks, group] : groups_) groups.push_back(group);
  }
  for (const auto& group : groups) group->Retire();
}

class GlooGroup::Handle final : public Work {
 public:
  Handle(std::shared_ptr<GlooGroup> group, RunningPtr running)
      : group_(std::move(group)), running_(std::move(running)) {}
  absl::Status Wait() override { return group_->Wait(running_); }
  bool IsDone() override {
    MutexLock lock(&group_->state_->mu);
    return running_->done || !group_->state_->failure_locked().ok();
  }

 private:
  const std::shared_ptr<GlooGroup> group_;
  const RunningPtr running_;
};

GlooGroup::GlooGroup(std::string name, std::vector<int> ranks, int rank,
                     const std::shared_ptr<GlooFamily>& family)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      rank_(rank),
      options_(family->options()),
      family_(family),
      state_(family->shared_state()),
      log_(name_, ranks_) {}

// Running operations and a forming thread own the group, so nothing is in flight here. Freeing
// still joins gloo's threads, and this may be one of them: another thread does it.
GlooGroup::~GlooGroup() {
  if (backend_ == nullptr) return;
  std::thread([backend = std::move(backend_),
               lingering = std::make_unique<LingeringGlooGroup>()]() mutable {
    backend.reset();
  }).detach();
}

void GlooGroup::Fail(const absl::Status& cause) {
  if (const auto family = family_.lock()) {
    family->Fail(cause);
    return;
  }
  // Nobody holds a communicator any more; only handles may still wait.
  state_->Fail(cause);
  Retire();
}

absl::Status GlooGroup::Named(const Running& running, absl::StatusCode code,
                              const std::string& what) {
  return absl::Status(code, absl::StrCat(log_.Name(running.sequence), " (rank ", ranks_[rank_],
                                         "): ", FirstLine(what)));
}

void GlooGroup::StartForming() {
  MutexLock lock(&issue_mu_);
  StartFormingLocked();
}

void GlooGroup::StartFormingLocked() {
  if (forming_ || retired_) return;
  forming_ = true;
  std::thread([self = shared_from_this(), lingering = std::make_unique<LingeringGlooGroup>()] {
    self->Form();
  }).detach();
}

void GlooGroup::Form() {
  // Members, not the name alone: disjoint groups of one kind share their name.
  const std::string key = absl::StrCat("gloo/", name_, "/", size(), "-",
                                       absl::Hex(Fingerprint(absl::StrJoin(ranks_, ","))), "/");
  auto opened = GlooBackend::Open({.host = GroupHost(options_, key),
                                   .rank = rank_,
                                   .size = size(),
                                   .operation_limit = options_.operation_limit});
  if (!opened.ok()) return Fail(Annotate(opened.status(), absl::StrCat("forming group ", name_)));
  const std::shared_ptr<GlooBackend> backend = *std::move(opened);
  {
    MutexLock lock(&issue_mu_);
    if (retired_) return;
    connecting_ = backend;  // from here on Retire pokes it
  }
  const auto store =
      c10::make_intrusive<GlooStore>(options_.store, key, size(), options_.form_limit);
  absl::Status status = backend->Connect(store);
  if (!store->status().ok()) status = store->status();  // the cause, with its code
  MutexLock lock(&issue_mu_);
  connecting_ = nullptr;
  if (retired_) {
    backend->SignalPairs();
    return;
  }
  if (!status.ok()) {
    return Fail(
        Annotate(status, absl::StrCat("forming group ", name_, " (rank ", ranks_[rank_], ")")));
  }
  backend_ = backend;
  for (const RunningPtr& running : queued_) DispatchLocked(running);
  queued_.clear();
  MutexLock state_lock(&state_->mu);
  formed_ = true;
  formed_changed_.NotifyAll();
}

absl::Status GlooGroup::WaitFormed() {
  absl::Status status;
  {
    MutexLock lock(&state_->mu);
    status = state_->Wait(&formed_changed_, AbortState::SteadyNow() + options_.form_limit,
                          [&] { return formed_; });
  }
  if (!absl::IsDeadlineExceeded(status)) return status;
  Fail(absl::DeadlineExceededError(
      absl::StrCat("forming group ", name_, " of ranks ", absl::StrJoin(ranks_, ","),
                   ": not all were there after ", absl::FormatDuration(options_.form_limit))));
  return state_->failure();
}

WorkPtr GlooGroup::Start(Operation operation) {
  auto running = std::make_shared<Running>();
  running->operation = std::move(operation);
  running->limit = LongWait::LimitOf(options_.operation_limit);
  running->deadline = AbortState::SteadyNow() + running->limit;
  MutexLock lock(&issue_mu_);
  running->sequence =
      log_.Start(running->operation.shape, absl::Now(), running->operation.transfers);
  if (absl::Status failure = state_->failure(); !failure.ok()) {
    log_.Finish(running->sequence, failure, absl::Now());
    return MakeReadyWork(std::move(failure));
  }
  if (backend_ != nullptr) {
    DispatchLocked(running);
  } else if (!retired_) {
    queued_.push_back(running);
    StartFormingLocked();
  }
  return std::make_shared<Handle>(shared_from_this(), running);
}

void GlooGroup::DispatchLocked(const RunningPtr& running) {
  if (!options_.check_collectives || running->operation.signature.empty()) {
    IssueLocked(running);
    return;
  }
  unchecked_.push_back(running);
  if (std::exchange(checking_, true)) return;
  waiters_.Run([self = shared_from_this()] { self->CheckAndIssue(); });
}

void GlooGroup::IssueLocked(const RunningPtr& running) {
  Works works;
  try {
    backend_->SetLimit(running->limit);
    works = running->operation.issue(backend_->ops());
  } catch (const std::exception& e) {
    return Fail(Named(*running, CodeOf(e.what()), e.what()));
  }
  {
    MutexLock lock(&state_->mu);
    running->works = works;
    running->num_left = std::max<int>(1, static_cast<int>(works.size()));
    in_flight_.insert(running);
  }
  Watch(running, works);
}

void GlooGroup::Watch(const RunningPtr& running, const Works& works) {
  if (works.empty()) {
    WorkEnded(running, "");
    return;
  }
  if (!running->operation.point_to_point) {
    for (const auto& work : works) {
      work->getFuture()->addCallback(
          [self = shared_from_this(), running](c10::ivalue::Future& future) {
            self->WorkEnded(running, future.hasError() ? future.tryRetrieveErrorMessage() : "");
          });
    }
    return;
  }
  const auto limit = std::chrono::milliseconds(
      absl::ToInt64Milliseconds(std::min(running->limit, absl::Hours(24))));
  waiters_.Run([self = shared_from_this(), running, works = Works(works), limit]() mutable {
    for (auto& work : works) {
      std::string error;
      try {
        if (!work->wait(limit)) error = "the group was aborted";
      } catch (const std::exception& e) {
        error = e.what();
        if (error.empty()) error = "unknown error";
      }
      work.reset();  // it holds the tensor
      self->WorkEnded(running, error);
    }
  });
}

void GlooGroup::WorkEnded(const RunningPtr& running, const std::string& error) {
  absl::Status status;
  if (!error.empty()) status = Named(*running, CodeOf(error), error);
  bool last = false, healthy = false;
  {
    MutexLock lock(&state_->mu);
    last = --running->num_left == 0;
    healthy = status.ok() && state_->failure_locked().ok();
  }
  if (last && healthy && running->operation.finish) {
    try {
      running->operation.finish();
    } catch (const std::exception& e) {
      status = Named(*running, absl::StatusCode::kInternal, e.what());
    }
  }
  if (last) End(running, healthy && status.ok());
  if (!status.ok()) Fail(status);
}

void GlooGroup::End(const RunningPtr& running, bool done) {
  if (done && !running->internal) log_.Finish(running->sequence, absl::OkStatus(), absl::Now());
  {
    // These and the tensors are freed outside the lock, and before anyone learns that the operation
    // is done: who waited for it holds the last reference then.
    Works works;
    Operation operation;
    MutexLock lock(&state_->mu);
    works.swap(running->works);
    std::swap(operation, running->operation);
  }
  MutexLock lock(&state_->mu);
  running->done = done;
  if (done) running->changed.NotifyAll();
  in_flight_.erase(running);
  if (in_flight_.empty()) drained_.NotifyAll();
}

absl::Status GlooGroup::Wait(const RunningPtr& running) {
  const OpLog::WaitScope waiting(log_, running->sequence);
  absl::Status status;
  {
    MutexLock lock(&state_->mu);
    status = state_->Wait(&running->changed, running->deadline, [&] { return running->done; });
    if (status.ok()) return status;
  }
  if (absl::IsDeadlineExceeded(status)) {
    Fail(Named(*running, absl::StatusCode::kDeadlineExceeded,
               absl::StrCat("not done after ", absl::FormatDuration(running->limit))));
  }
  status = state_->failure();
  log_.Finish(running->sequence, status, absl::Now());
  return status;
}

std::string GlooGroup::Describe() { return log_.Describe(absl::Now()); }

void GlooGroup::WaitUntilDrained() {
  MutexLock lock(&state_->mu);
  while (!in_flight_.empty()) drained_.Wait(&state_->mu);
}

void GlooGroup::Retire() {
  std::thread([self = shared_from_this(), lingering = std::make_unique<LingeringGlooGroup>()] {
    std::shared_ptr<GlooBackend> backend, connecting;
    std::deque<RunningPtr> dropped;
    {
      MutexLock lock(&self->issue_mu_);
      if (self->retired_) return;
      self->retired_ = true;
      backend = std::move(self->backend_);
      self->backend_ = nullptr;
      connecting = self->connecting_;
      dropped.swap(self->queued_);
      dropped.insert(dropped.end(), self->unchecked_.begin(), self->unchecked_.end());
      self->unchecked_.clear();
    }
    if (connecting != nullptr) connecting->Poke();
    if (backend == nullptr) return;
    const absl::Duration begin = AbortState::SteadyNow();
    backend->SignalPairs();
    std::vector<Works> to_abort;
    {
      MutexLock lock(&self->state_->mu);
      for (const RunningPtr& running : self->in_flight_) {
        if (running->operation.point_to_point) to_abort.push_back(running->works);
      }
    }
    for (const Works& works : to_abort) {
      for (const auto& work : works) work->abort();  // wakes the pool's thread
    }
    self->WaitUntilDrained();
    backend.reset();
    const absl::Duration took = AbortState::SteadyNow() - begin;
    if (took > absl::Seconds(1)) {
      MUSTER_LOG(kInfo) << "gloo let go of an aborted group late group=" << self->name_
                        << " after=" << absl::FormatDuration(took);
    }
  }).detach();
}

}  // namespace muster
