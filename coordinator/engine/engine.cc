#include "coordinator/engine/engine.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace muster {
namespace {

absl::Status Stopping() { return absl::UnavailableError("the coordinator is stopping; try again"); }

}  // namespace

Engine::Engine(const EngineOptions& options, Clock* clock, ActionSink* sink, Journal* journal)
    : options_(options),
      clock_(clock),
      sink_(sink),
      journal_(journal),
      wall_start_(clock->Now()),
      steady_start_(clock->Steady()),
      core_(options.core) {}

Engine::~Engine() { Stop(); }

absl::StatusOr<Restored> Engine::Restore() {
  MUSTER_CHECK(journal_ != nullptr && !thread_.joinable());
  const absl::Duration begin = clock_->Steady();
  const auto tail = static_cast<int64_t>(options_.core.jobs.history.max_steps);
  ASSIGN_OR_RETURN(const DurableState state, journal_->Load(tail));
  if (const absl::Status status = core_.Restore(state, Now()); !status.ok()) {
    return absl::DataLossError(absl::StrCat(
        journal_->Name(), ": ", status.message(),
        "; put a backup in its place, or move it away and start again without its jobs"));
  }
  Restored restored{.num_jobs = core_.jobs().size(),
                    .num_agents = core_.membership().agents().size(),
                    .num_records = state.records.size(),
                    .num_rows = state.ledger.size()};
  for (const auto& [sequence, job] : core_.jobs()) restored.num_active_jobs += !job->ended();
  restored.took = clock_->Steady() - begin;
  return restored;
}

void Engine::Start() {
  MUSTER_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void Engine::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.NotifyOne();
  }
  if (thread_.joinable()) thread_.join();
  std::deque<Item> left;  // only when it was never started
  {
    MutexLock lock(&mu_);
    left.swap(queue_);
  }
  for (Item& item : left) RefuseOne(std::move(item));
}

absl::Status Engine::Post(Event event, Done done) {
  return Enqueue(PostItem{std::move(event), std::move(done)});
}

absl::Status Engine::Read(ReadFn read) { return Enqueue(std::move(read)); }

absl::Status Engine::Watch(const std::string& job_id, absl::Duration wait, Attempt attempt) {
  return Enqueue(WatchItem{job_id, wait, std::move(attempt)});
}

absl::StatusOr<std::vector<LedgerRow>> Engine::ReadLedger(const JobMachine& job, LedgerKind kind,
                                                          int64_t since, int64_t limit) {
  if (journal_ == nullptr) return std::vector<LedgerRow>();
  return journal_->ReadLedger(job.identity().sequence, kind, since, limit);
}

absl::Status Engine::Enqueue(Item item) {
  MutexLock lock(&mu_);
  if (stopping_) return Stopping();
  if (queue_.size() >= options_.max_queue) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the coordinator has ", queue_.size(), " requests waiting; try again later"));
  }
  queue_.push_back(std::move(item));
  if (queue_.size() == 1) wake_.NotifyOne();
  return absl::OkStatus();
}

absl::Time Engine::Now() { return wall_start_ + (clock_->Steady() - steady_start_); }

std::deque<Engine::Item> Engine::NextBatch(bool* stopping) {
  std::deque<Item> batch;
  MutexLock lock(&mu_);
  const absl::Duration until_tick = next_tick_ - Now();
  if (queue_.empty() && !stopping_ && until_tick > absl::ZeroDuration()) {
    wake_.WaitFor(&mu_, until_tick);
  }
  *stopping = stopping_;
  if (stopping_ || queue_.size() <= options_.max_batch) {
    batch.swap(queue_);
    return batch;
  }
  const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(options_.max_batch);
  batch.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
  return batch;
}

void Engine::Run() {
  bool stopping = false;
  while (!stopping) {
    std::deque<Item> batch = NextBatch(&stopping);
    const absl::Time now = Now();
    if (now >= next_tick_) {
      OnTimer(now);
      next_tick_ = now + options_.tick;
    }
    for (Item& item : batch) {
      if (stopping) {
        RefuseOne(std::move(item));
      } else {
        TakeOne(std::move(item), now);
      }
    }
    Commit();
  }
  // Nothing is queued any more: Enqueue refuses since stopping_ was set. What could not be written
  // is not acknowledged.
  for (Release& release : releases_) {
    auto& finished = std::get<Finished>(release);
    if (finished.done) finished.done(Outcome{.status = Stopping()});
  }
  releases_.clear();
  for (auto& [job_id, watcher] : watchers_) watcher.attempt(core_, Now(), /*last=*/true);
  watchers_.clear();
  if (journal_ != nullptr) (void)journal_->Sync();
}

void Engine::OnTimer(absl::Time now) {
  TakeHeartbeats(now);
  MaintainJournal(now);
  retry_ = true;
  if (!holding()) {
    handled_ = true;
    Keep({.actions = core_.Tick(now)}, nullptr);
  }
  ExpireWatchers();
}

void Engine::TakeHeartbeats(absl::Time now) {
  if (heartbeat_source_ == nullptr) return;
  std::vector<Heartbeat> heartbeats;
  heartbeat_source_(&heartbeats);
  for (Heartbeat& heartbeat : heartbeats) {
    const StreamId stream = heartbeat.stream;
    handled_ = true;
    Outcome outcome = core_.Handle(std::move(heartbeat), now);
    if (!outcome.status.ok()) outcome.actions.emplace_back(EndStream{stream, outcome.status});
    Keep(std::move(outcome), nullptr);
  }
}

void Engine::TakeOne(Item item, absl::Time now) {
  if (auto* post = std::get_if<PostItem>(&item)) {
    const bool harmless = std::holds_alternative<Heartbeat>(post->event) ||
                          std::holds_alternative<CloseStream>(post->event) ||
                          std::holds_alternative<CancelWait>(post->event);
    if (holding() && !harmless) {
      if (post->done) post->done(AnswerWhileHolding(post->event));
      return;
    }
    handled_ = true;
    Keep(core_.Handle(post->event, now), std::move(post->done));
  } else if (auto* read = std::get_if<ReadFn>(&item)) {
    releases_.emplace_back(std::move(*read));
  } else if (auto* watch = std::get_if<WatchItem>(&item)) {
    releases_.emplace_back(std::move(*watch));
  }
}

void Engine::Keep(Outcome outcome, Done done) {
  if (done == nullptr && outcome.actions.empty()) return;
  releases_.emplace_back(Finished{std::move(outcome), std::move(done)});
}

void Engine::RefuseOne(Item item) {
  if (auto* post = std::get_if<PostItem>(&item)) {
    if (post->done) post->done(Outcome{.status = Stopping()});
  } else if (auto* read = std::get_if<ReadFn>(&item)) {
    (*read)(Stopping(), core_, Now());
  } else if (auto* watch = std::get_if<WatchItem>(&item)) {
    watch->attempt(core_, Now(), /*last=*/true);
  }
}

}  // namespace muster
