#include "coordinator/engine/engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/runtime/log.h"

namespace muster {
namespace {

absl::Status Stopping() { return absl::UnavailableError("the coordinator is stopping; try again"); }

}  // namespace

Engine::Engine(const EngineOptions& options, Clock* clock, ActionSink* sink)
    : options_(options),
      clock_(clock),
      sink_(sink),
      wall_start_(clock->Now()),
      steady_start_(clock->Steady()),
      core_(options.core) {}

Engine::~Engine() { Stop(); }

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

void Engine::Run() {
  absl::Time next_tick = Now();
  bool stopping = false;
  while (!stopping) {
    std::deque<Item> batch;
    {
      MutexLock lock(&mu_);
      const absl::Duration until_tick = next_tick - Now();
      if (queue_.empty() && !stopping_ && until_tick > absl::ZeroDuration()) {
        wake_.WaitFor(&mu_, until_tick);
      }
      batch.swap(queue_);
      stopping = stopping_;
    }
    if (const absl::Time now = Now(); now >= next_tick) {
      TakeHeartbeats(now);
      CarryOut(core_.Tick(now));
      ExpireWatchers();
      next_tick = now + options_.tick;
    }
    for (Item& item : batch) {
      if (stopping) {
        RefuseOne(std::move(item));
      } else {
        HandleOne(std::move(item));
      }
    }
  }
  // Nothing is queued any more: Enqueue refuses since stopping_ was set.
  for (auto& [job_id, watcher] : watchers_) watcher.attempt(core_, Now(), /*last=*/true);
  watchers_.clear();
}

void Engine::TakeHeartbeats(absl::Time now) {
  if (heartbeat_source_ == nullptr) return;
  std::vector<Heartbeat> heartbeats;
  heartbeat_source_(&heartbeats);
  for (Heartbeat& heartbeat : heartbeats) {
    const StreamId stream = heartbeat.stream;
    const Outcome outcome = core_.Handle(std::move(heartbeat), now);
    if (!outcome.status.ok()) sink_->End(stream, outcome.status);
    CarryOut(outcome.actions);
  }
}

void Engine::HandleOne(Item item) {
  const absl::Time now = Now();
  if (auto* post = std::get_if<PostItem>(&item)) {
    const Outcome outcome = core_.Handle(post->event, now);
    if (post->done) post->done(outcome);
    CarryOut(outcome.actions);
  } else if (auto* read = std::get_if<ReadFn>(&item)) {
    (*read)(absl::OkStatus(), core_, now);
  } else if (auto* watch = std::get_if<WatchItem>(&item)) {
    const bool last =
        watch->wait <= absl::ZeroDuration() || watchers_.size() >= options_.max_watches;
    if (watch->attempt(core_, now, last) || last) return;
    watchers_.emplace(watch->job_id, Watcher{now + watch->wait, std::move(watch->attempt)});
  }
}

void Engine::RefuseOne(Item item) {
  if (auto* post = std::get_if<PostItem>(&item)) {
    Outcome outcome;
    outcome.status = Stopping();
    if (post->done) post->done(outcome);
  } else if (auto* read = std::get_if<ReadFn>(&item)) {
    (*read)(Stopping(), core_, Now());
  } else if (auto* watch = std::get_if<WatchItem>(&item)) {
    watch->attempt(core_, Now(), /*last=*/true);
  }
}

void Engine::CarryOut(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (const auto* send = std::get_if<SendToAgent>(&action)) {
      sink_->Send(send->stream, send->message);
    } else if (const auto* end = std::get_if<EndStream>(&action)) {
      MUSTER_LOG(kWarning) << "agent stream ended stream=" << end->stream << " reason=\""
                           << std::string(end->status.message()) << "\"";
      sink_->End(end->stream, end->status);
    } else if (const auto* done = std::get_if<WaitDone>(&action)) {
      sink_->Answer(*done);
    } else if (const auto* changed = std::get_if<JobChanged>(&action)) {
      LogState(changed->job_id);
      RunWatchers(changed->job_id);
    }
  }
}

void Engine::LogState(const std::string& job_id) {
  const JobMachine* job = core_.FindJob(job_id);
  if (job == nullptr) return;
  const auto known = logged_.find(job_id);
  if (known == logged_.end() ? job->ended() : known->second == job->state()) return;
  MUSTER_LOG(kInfo) << "job state job=" << job_id << " state=" << JobStateName(job->state())
                    << " epoch=" << job->epoch() << " iteration=" << job->iteration()
                    << " reason=\"" << job->reason() << "\"";
  if (job->ended()) {
    logged_.erase(job_id);
  } else {
    logged_[job_id] = job->state();
  }
}

void Engine::RunWatchers(const std::string& job_id) {
  const auto [first, last] = watchers_.equal_range(job_id);
  for (auto it = first; it != last;) {
    it = it->second.attempt(core_, Now(), /*last=*/false) ? watchers_.erase(it) : std::next(it);
  }
}

void Engine::ExpireWatchers() {
  const absl::Time now = Now();
  for (auto it = watchers_.begin(); it != watchers_.end();) {
    if (it->second.deadline > now) {
      ++it;
      continue;
    }
    it->second.attempt(core_, now, /*last=*/true);
    it = watchers_.erase(it);
  }
}

}  // namespace muster
