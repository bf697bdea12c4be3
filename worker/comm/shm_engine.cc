#include "worker/comm/shm_engine.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "worker/comm/long_wait.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace muster {
namespace {

// Looks that a waiter makes before it sleeps; some microseconds.
constexpr int kSpins = 200;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

class ShmEngine::Deleter {
 public:
  void operator()(ShmEngine* engine) const {
    if (engine->num_pending_.load() == 0 || engine->failed_.load()) {
      delete engine;
      return;
    }
    std::thread([engine] {
      engine->Drive([&] { return engine->num_pending_.load() == 0; }, 0);
      delete engine;
    }).detach();
  }
};

std::shared_ptr<ShmEngine> ShmEngine::Make(Options options) {
  return std::shared_ptr<ShmEngine>(new ShmEngine(std::move(options)), Deleter());
}

ShmEngine::ShmEngine(Options options) : options_(std::move(options)) {
  helper_ = std::thread([this] { Help(); });
  listener_ = state().AddListener([this] { OnFailure(); });
}

ShmEngine::~ShmEngine() {
  state().RemoveListener(listener_);
  {
    MutexLock lock(&helper_mu_);
    stop_ = true;
    helper_changed_.NotifyAll();
  }
  bell().RingAlways();
  helper_.join();
}

ShmGroup* ShmEngine::FindOrMake(const std::string& name, const std::vector<int>& ranks, int rank,
                                const std::vector<int>& node_ranks) {
  MutexLock lock(&mu_);
  std::unique_ptr<ShmGroup>& group = groups_[ranks];
  if (group == nullptr) {
    std::vector<std::shared_ptr<ShmArena>> arenas;
    for (int place : node_ranks) arenas.push_back(options_.arenas[place]);
    group = std::make_unique<ShmGroup>(name, ranks, rank, node_ranks, std::move(arenas));
  }
  return group.get();
}

void ShmEngine::Start(ShmGroup* group, const ShmOpPtr& op) {
  op->group = group;
  op->deadline = AbortState::SteadyNow() + LongWait::LimitOf(options_.operation_limit);
  std::vector<OpTransfer> observed;
  if (group->log().observed()) {
    for (const ShmTransfer& one : op->transfers) {
      observed.push_back({one.is_send, one.peer, one.channel, one.bytes});
    }
  }
  op->sequence = group->log().Start(op->shape, absl::Now(), observed);
  ++num_pending_;
  {
    MutexLock lock(&inbox_mu_);
    inbox_.push_back(op);
  }
  if (!mu_.TryLock()) {
    // Whoever looks now may have emptied the inbox before.
    bell().RingForData(options_.node_rank);
    if (num_drivers_.load() == 0) WakeHelper();
    return;
  }
  ShmPass pass;
  ShmAwaited armed;
  // A driver that sleeps must be woken by what this operation awaits, too.
  for (;;) {
    pass = LookLocked(/*from_driver=*/false);
    if (op->done.load() || failed_.load()) break;
    if (pass.progress) continue;
    if (pass.awaited.IsIn(armed)) break;
    armed = pass.awaited;
    bell().Await(armed);
  }
  mu_.Unlock();
  if (num_pending_.load() > 0 && num_drivers_.load() == 0) WakeHelper();
}

ShmPass ShmEngine::Look(bool from_driver) {
  MutexLock lock(&mu_);
  return LookLocked(from_driver);
}

ShmPass ShmEngine::LookLocked(bool from_driver) {
  ShmPass pass;
  pass.gone = gone_.load();
  pass.now = AbortState::SteadyNow();
  pass.awaited.data = uint64_t{1} << options_.node_rank;
  std::vector<ShmOpPtr> admitted;
  {
    MutexLock lock(&inbox_mu_);
    admitted.swap(inbox_);
  }
  for (const ShmOpPtr& op : admitted) {
    if (op->group->idle()) active_.push_back(op->group);
    pass.failure.Update(op->group->Admit(op));
  }
  for (size_t i = 0; i < active_.size() && pass.failure.ok() && !failed_.load();) {
    active_[i]->Step(pass);
    if (active_[i]->idle()) {
      active_.erase(active_.begin() + static_cast<int64_t>(i));
    } else {
      ++i;
    }
  }
  if (!pass.failure.ok()) state().Fail(pass.failure);
  if (failed_.load()) DropAllLocked();
  if (pass.num_done > 0) {
    num_pending_ -= pass.num_done;
    // Others may sleep until one of these is done.
    if (num_drivers_.load() > (from_driver ? 1 : 0)) bell().RingForData(options_.node_rank);
  }
  return pass;
}

void ShmEngine::DropAllLocked() {
  const absl::Status failure = state().failure();
  std::vector<ShmOpPtr> refused;
  {
    MutexLock lock(&inbox_mu_);
    refused.swap(inbox_);
  }
  for (const ShmOpPtr& op : refused) {
    op->group->log().Finish(op->sequence, failure, absl::Now());
    op->memory.reset();
  }
  for (ShmGroup* group : active_) group->Drop(failure);
  active_.clear();
  num_pending_.store(0);
}

template <class Done>
void ShmEngine::Drive(Done done, int num_spins) {
  ++num_drivers_;
  uint32_t seen = 0;
  ShmAwaited armed;
  while (!done()) {
    const ShmPass pass = Look(/*from_driver=*/true);
    if (pass.progress) {
      armed = {};
      continue;
    }
    if (done()) break;
    if (num_spins > 0) {
      --num_spins;
      Pause();
      continue;
    }
    if (!pass.awaited.IsIn(armed)) {
      seen = bell().rings.load();
      armed = pass.awaited;
      bell().Await(armed);
      continue;  // looks again, now that it will be rung
    }
    const absl::Duration left = pass.next_deadline - pass.now;
    bell().Sleep(seen, std::min(std::max(left, absl::Milliseconds(1)), options_.longest_sleep));
    armed = {};
  }
  if (num_drivers_.load() == 1) {
    bell().Hush();
    // It does not wake whoever came meanwhile and sleeps already.
    if (num_drivers_.load() > 1) bell().RingAlways();
  }
  --num_drivers_;
}

absl::Status ShmEngine::Wait(const ShmOpPtr& op) {
  if (op->done.load()) return absl::OkStatus();
  const OpLog::WaitScope waiting(op->group->log(), op->sequence);
  Drive([&] { return op->done.load() || failed_.load(); }, options_.crowded ? 0 : kSpins);
  if (num_pending_.load() > 0 && num_drivers_.load() == 0) WakeHelper();
  if (op->done.load()) return absl::OkStatus();
  MutexLock lock(&mu_);  // nobody is inside the operation's memory
  DropAllLocked();
  op->memory.reset();
  return state().failure();
}

// ---- the helper --------------------------------------------------------------------------------

void ShmEngine::WakeHelper() {
  MutexLock lock(&helper_mu_);
  helper_wanted_ = true;
  helper_changed_.NotifyAll();
}

void ShmEngine::Help() {
  for (;;) {
    {
      MutexLock lock(&helper_mu_);
      while (!helper_wanted_ && !stop_) helper_changed_.Wait(&helper_mu_);
      if (stop_) return;
      helper_wanted_ = false;
    }
    // Until all is done or somebody else is at it.
    Drive([&] { return num_pending_.load() == 0 || num_drivers_.load() > 1 || failed_.load(); }, 0);
    if (failed_.load()) {
      MutexLock lock(&mu_);
      DropAllLocked();
    } else if (num_pending_.load() > 0 && num_drivers_.load() == 0) {
      WakeHelper();
    }
  }
}

void ShmEngine::OnFailure() {
  failed_.store(true);
  bell().RingAlways();
  WakeHelper();
  if (options_.on_failure) options_.on_failure();
}

void ShmEngine::PeerGone(int node_rank) {
  gone_ |= uint64_t{1} << node_rank;
  bell().RingAlways();
}

std::string ShmEngine::Describe(ShmGroup* group) {
  MutexLock lock(&mu_);
  group->NoteArrivals();
  return group->log().Describe(absl::Now());
}

}  // namespace muster
