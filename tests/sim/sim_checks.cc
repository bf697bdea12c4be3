#include "tests/sim/sim_checks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster {

SimChecks::SimChecks(Sim* sim, const CoordinatorOptions& options, int num_workers)
    : sim_(sim),
      options_(options),
      all_every_(num_workers <= kSmall ? 1 : std::max(2, num_workers / 2)) {}

void SimChecks::Report(const std::vector<std::string>& faults) {
  for (const std::string& fault : faults) sim_->Wrong(fault);
}

void SimChecks::Handled(const std::vector<Action>& actions) {
  ++num_events_;
  const Coordinator& core = host_->core();
  for (const Action& action : actions) {
    if (const auto* changed = std::get_if<JobChanged>(&action)) touched_.insert(changed->job_id);
  }
  if (num_events_ % all_every_ == 0) {
    ++num_checks_;
    Report(CheckInvariants(core));
  } else {
    for (const Action& action : actions) {
      const auto* changed = std::get_if<JobChanged>(&action);
      const JobMachine* job = changed == nullptr ? nullptr : core.FindJob(changed->job_id);
      if (job != nullptr) Report(CheckInvariants(core, *job));
    }
  }
  if (core.jobs().size() > options_.max_jobs) sim_->Wrong("more jobs than may be held");
  if (host_->queue_size() > SimCoordinatorHost::kMaxQueue) sim_->Wrong("the queue is too long");
}

void SimChecks::Written() {
  const Coordinator& core = host_->core();
  for (const std::string& job_id : touched_) {
    const JobMachine* job = core.FindJob(job_id);
    if (job == nullptr) continue;
    Report(checker_.Check(core, *job));
    if (job->ended()) ended_.emplace(job_id, sim_->steady());
    if (job->cause().has_value() && causes_[job_id].first != job->cause()->text) {
      causes_[job_id] = {job->cause()->text, sim_->steady()};
    }
  }
  touched_.clear();
  if (++num_writes_ % (64 * all_every_) == 0) CompareWithRestored();
}

void SimChecks::Restored() {
  touched_.clear();
  if (std::exchange(lost_power_, false)) acknowledged_.clear();
  // Compares with what was written last: nothing of it may have gone back.
  Report(checker_.Check(host_->core()));
  Promises();
}

void SimChecks::LostPower() {
  lost_power_ = true;
  checker_ = {};
  for (auto& [job_id, seen] : observed_) seen.first = 0;
}

void SimChecks::CompareWithRestored() {
  Coordinator other(options_);
  const absl::Status restored = other.Restore(journal_->Load(100'000), host_->Now());
  if (!restored.ok()) return sim_->Wrong(absl::StrCat("cannot restore: ", restored.ToString()));
  const std::vector<std::string> lives = absl::StrSplit(DescribeDurable(host_->core()), '\n');
  const std::vector<std::string> reads = absl::StrSplit(DescribeDurable(other), '\n');
  for (size_t i = 0; i < std::max(lives.size(), reads.size()); ++i) {
    const std::string has = i < lives.size() ? lives[i] : "",
                      gets = i < reads.size() ? reads[i] : "";
    if (has == gets) continue;
    sim_->Wrong(absl::StrCat("what is written differs from what is known:\n    known:   ", has,
                             "\n    written: ", gets));
    return;
  }
}

// ---- promises

void SimChecks::Submitted(const std::string& job_id, const std::string& spec_json) {
  known_.insert(job_id);
  specs_[job_id] = spec_json;
}

void SimChecks::Directed(const std::string& job_id, int64_t number, Directive::Kind kind) {
  directives_[job_id].emplace_back(number, kind);
}

void SimChecks::Drained(const std::string& worker, std::optional<bool> draining) {
  if (draining.has_value()) {
    draining_[worker] = *draining;
  } else {
    draining_.erase(worker);
  }
}

void SimChecks::Acknowledged(const std::vector<TrainerReport>& reports) {
  for (const TrainerReport& report : reports) {
    const auto* step = std::get_if<StepMessage>(&report.body);
    if (step == nullptr) continue;
    Step& newest = acknowledged_[report.assignment.job_id];
    const Step now{report.assignment.epoch, step->iteration};
    if (std::pair(now.epoch, now.iteration) < std::pair(newest.epoch, newest.iteration)) continue;
    newest = now;
    if (host_->up()) CheckStep(report.assignment.job_id, now);
  }
}

void SimChecks::CheckStep(const std::string& job_id, const Step& step) {
  const JobMachine* job = host_->core().FindJob(job_id);
  // A report of an epoch that is over counts for nothing, and may be forgotten.
  if (job == nullptr || job->epoch() != step.epoch || job->aborted() || job->ended()) return;
  if (job->iteration() < step.iteration) {
    sim_->Wrong(absl::StrCat(job_id, ": step ", step.iteration,
                             " was acknowledged, but the newest known one is ", job->iteration()));
  }
}

void SimChecks::Observe(const std::string& job_id) {
  const JobMachine* job = host_->core().FindJob(job_id);
  if (job == nullptr) return;
  auto& [version, state] = observed_[job_id];
  if (job->version() < version) {
    sim_->Wrong(
        absl::StrCat(job_id, ": a reader saw version ", version, " and now ", job->version()));
  }
  if (IsEnded(state) && job->state() != state) {
    sim_->Wrong(absl::StrCat(job_id, ": a reader saw it ", JobStateName(state), " and now ",
                             JobStateName(job->state())));
  }
  version = job->version();
  state = job->state();
}

void SimChecks::Promises() {
  const Coordinator& core = host_->core();
  for (const auto& [job_id, spec] : specs_) {
    const JobMachine* job = core.FindJob(job_id);
    if (job == nullptr) {
      if (!ended_.contains(job_id)) sim_->Wrong(absl::StrCat(job_id, " was accepted and is gone"));
    } else if (job->identity().spec_json != spec) {
      sim_->Wrong(absl::StrCat(job_id, " has become another job"));
    }
  }
  for (const auto& [job_id, numbers] : directives_) {
    const JobMachine* job = core.FindJob(job_id);
    if (job == nullptr) continue;
    const std::vector<Directive> log = job->directives().After(0);
    for (const auto& [number, kind] : numbers) {
      if (number > static_cast<int64_t>(log.size()) || log[number - 1].kind != kind) {
        sim_->Wrong(absl::StrCat(job_id, ": directive ", number, " was given and is not there"));
      }
    }
  }
  for (const auto& [worker, draining] : draining_) {
    const Worker* found = core.membership().FindWorker(worker);
    if (found != nullptr && found->hold.draining != draining) {
      sim_->Wrong(absl::StrCat(worker, draining ? " was drained and is not" : " is drained still"));
    }
  }
  for (const auto& [job_id, step] : acknowledged_) CheckStep(job_id, step);
}

std::string DescribeDurable(const Coordinator& coordinator) {
  std::string text;
  for (const auto& [sequence, job] : coordinator.jobs()) {
    absl::StrAppend(&text, job->job_id(), " ", JobStateName(job->state()), " v", job->version(),
                    " epoch ", job->epoch(), " iteration ", job->iteration(), " code ",
                    job->exit_code(), " aborted ", job->aborted(), " id ", job->unique_id(),
                    " directives ", job->directives().last(), "/", job->directives().applied(), "/",
                    job->directives_through(), " spares ", job->num_spares(), " cause ",
                    job->cause().has_value() ? job->cause()->text : "-", " reason ", job->reason(),
                    "\n");
    const JobHistory& history = job->history();
    absl::StrAppend(&text, job->job_id(), " steps ", history.steps().size(), " next ",
                    history.steps().next(), " events ", history.events().next(), " evaluations ",
                    history.evaluations().size(), " checkpoints ", history.checkpoints().size(),
                    " rendezvous ", coordinator.rendezvous().epoch(job->job_id()), "\n");
    for (size_t rank = 0; rank < job->ranks().size(); ++rank) {
      const RankSlot& slot = job->ranks()[rank];
      absl::StrAppend(&text, job->job_id(), " rank ", rank, " ", slot.worker, " ",
                      static_cast<int>(slot.trainer), " done ", slot.done.has_value(), "\n");
    }
  }
  for (const auto& [name, worker] : coordinator.membership().workers()) {
    const Agent& agent = *coordinator.membership().FindAgent(worker.incarnation);
    if (agent.state == AgentState::kLost) continue;
    absl::StrAppend(&text, "worker ", name, " of ", worker.incarnation, " through ",
                    agent.reports_through, " draining ", worker.hold.draining, " runs ",
                    worker.assignment.has_value()
                        ? absl::StrCat(worker.assignment->job_id, " ", worker.assignment->epoch,
                                       " ", worker.assignment->rank)
                        : "-",
                    "\n");
  }
  return text;
}

}  // namespace muster
