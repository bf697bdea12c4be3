// Engine's part that lets go of what is written: replies, actions, reads, watchers.
#include <utility>

#include "common/runtime/log.h"
#include "coordinator/engine/engine.h"

namespace muster {

void Engine::ReleaseAll() {
  std::vector<Release> releases = std::exchange(releases_, {});
  for (Release& release : releases) {
    if (auto* finished = std::get_if<Finished>(&release)) {
      if (finished->done) finished->done(finished->outcome);
      CarryOut(finished->outcome.actions);
    } else if (auto* read = std::get_if<ReadFn>(&release)) {
      (*read)(absl::OkStatus(), core_, Now());
    } else if (auto* watch = std::get_if<WatchItem>(&release)) {
      Start(std::move(*watch));
    }
  }
  // Once a job, however many events of it there were.
  for (const std::string& job_id : std::exchange(changed_jobs_, {})) RunWatchers(job_id);
}

void Engine::ReleaseReads() {
  std::vector<Release> held;
  for (Release& release : std::exchange(releases_, {})) {
    if (auto* read = std::get_if<ReadFn>(&release)) {
      (*read)(absl::OkStatus(), core_, Now());
    } else if (auto* watch = std::get_if<WatchItem>(&release)) {
      Start(std::move(*watch));
    } else {
      held.push_back(std::move(release));
    }
  }
  releases_ = std::move(held);
}

void Engine::Start(WatchItem watch) {
  const absl::Time now = Now();
  const bool last = watch.wait <= absl::ZeroDuration() || watchers_.size() >= options_.max_watches;
  if (watch.attempt(core_, now, last) || last) return;
  watchers_.emplace(watch.job_id, Watcher{now + watch.wait, std::move(watch.attempt)});
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
      changed_jobs_.insert(changed->job_id);
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
