#include "tests/sim/sim_people.h"

#include <algorithm>
#include <utility>

#include "tests/coordinator/core/test_spec.h"

namespace muster {

void SimPeople::Insist(Event event, Answered answered) {
  ++num_open_;
  ++num_calls_;
  network_->Call(
      SimNetwork::kPeople, event,
      [this, event, answered = std::move(answered)](const Outcome& outcome) {
        --num_open_;
        if (absl::IsUnavailable(outcome.status) || absl::IsResourceExhausted(outcome.status)) {
          ++num_open_;  // until it is asked again
          sim_->At(sim_->Between(absl::Milliseconds(500), absl::Seconds(3)),
                   [this, event, answered] {
                     --num_open_;
                     Insist(event, answered);
                   });
          return;
        }
        answered(outcome);
      });
}

void SimPeople::SubmitSpec(const std::string& spec, const std::string& key,
                           std::function<void(const std::string&)> then) {
  Insist(
      SubmitJob{.spec_json = spec, .idempotency_key = key},
      [this, spec, key, then = std::move(then)](const Outcome& outcome) {
        const auto* reply = std::get_if<SubmitReply>(&outcome.reply);
        if (!outcome.status.ok() || reply == nullptr || reply->job_id.empty()) {
          sim_->Wrong(absl::StrCat("submit refused: ", outcome.status.ToString()));
          return;
        }
        const auto [known, is_new] = job_of_key_.emplace(key, reply->job_id);
        if (known->second != reply->job_id) {
          sim_->Wrong(absl::StrCat("one key made two jobs: ", known->second, ", ", reply->job_id));
        }
        checks_->Submitted(reply->job_id, spec);
        if (is_new) jobs_.push_back(reply->job_id);
        then(reply->job_id);
      });
}

void SimPeople::SubmitSome() {
  const int world_size = 1 + sim_->Pick(std::min(options_.max_world, num_workers_));
  const bool spare = world_size < num_workers_ && sim_->Pick(100) < options_.percent_spares;
  TestSpecOptions options{
      .world_size = world_size,
      .spares = spare,
      .priority = sim_->Pick(3),
      .save = sim_->Chance(0.5) ? "/ckpt" : "",
      .train_iters = options_.min_iters + sim_->Pick(options_.max_iters - options_.min_iters + 1)};
  if (options_.percent_recovering > 0 && sim_->Pick(100) < options_.percent_recovering) {
    options.max_restarts = 1 + sim_->Pick(20);
    options.elastic = sim_->Chance(0.4);
    options.sharded = sim_->Chance(0.4);
    options.snapshot_interval = 1 + sim_->Pick(8);
    options.wait_for_workers_s = 20 + sim_->Pick(60);
  }
  const std::string spec = TestSpec(options);
  const std::string key = absl::StrCat("key-", next_key_++);
  SubmitSpec(spec, key, [this, spec, key](const std::string&) {
    if (sim_->Chance(0.3)) SubmitSpec(spec, key, [](const std::string&) {});
  });
}

void SimPeople::Submit(int world_size, int train_iters) {
  SubmitSpec(TestSpec({.world_size = world_size, .save = "/ckpt", .train_iters = train_iters}),
             absl::StrCat("key-", next_key_++), [](const std::string&) {});
}

void SimPeople::Cancel(const std::string& job, CancelMode mode) {
  Insist(CancelJob{.job_id = job, .reason = "by somebody", .mode = mode},
         [this, job](const Outcome& outcome) {
           if (outcome.status.ok()) checks_->CancelAnswered(job);
         });
}

void SimPeople::Direct(const std::string& job, Directive::Kind kind) {
  ++num_open_;
  ++num_calls_;
  network_->Call(SimNetwork::kPeople, RequestDirective{.job_id = job, .kind = kind},
                 [this, job, kind](const Outcome& outcome) {
                   --num_open_;
                   if (!outcome.status.ok()) return;
                   checks_->Directed(job, std::get<DirectiveReply>(outcome.reply).number, kind);
                 });
}

void SimPeople::Drain(const std::string& worker, bool undo) {
  if (!draining_.insert(worker).second) return;
  checks_->Drained(worker, std::nullopt);
  Insist(DrainWorker{worker, undo}, [this, worker, undo](const Outcome& outcome) {
    draining_.erase(worker);
    if (outcome.status.ok()) checks_->Drained(worker, !undo);
    // Nobody forgets a worker for good; one that is not known now comes back as it was.
    if (!undo || !outcome.status.ok()) {
      ++num_open_;
      sim_->At(absl::Seconds(3), [this, worker] {
        --num_open_;
        Drain(worker, true);
      });
    }
  });
}

void SimPeople::Flood(int num_calls) {
  sim_->Trace("people: a flood of ", num_calls, " calls");
  for (int i = 0; i < num_calls; ++i) {
    switch (sim_->Pick(4)) {
      case 0: {  // what cannot be a job, or is one that nobody waits for
        const bool bad = sim_->Chance(0.5);
        const std::string spec = bad ? "{\"nonsense\": 1}" : TestSpec({.world_size = 1});
        const std::string key = absl::StrCat("key-", next_key_++);
        network_->Call(SimNetwork::kPeople, SubmitJob{spec, key},
                       [this, spec, key, bad](const Outcome& outcome) {
                         const auto* reply = std::get_if<SubmitReply>(&outcome.reply);
                         if (!outcome.status.ok() || reply == nullptr || reply->job_id.empty()) {
                           return;
                         }
                         if (bad) sim_->Wrong("a bad spec became a job");
                         checks_->Submitted(reply->job_id, spec);
                         Cancel(reply->job_id, CancelMode::kKill);
                       });
        break;
      }
      case 1:
        if (!jobs_.empty()) {
          Direct(jobs_[sim_->Pick(static_cast<int>(jobs_.size()))], Directive::Kind::kEvaluate);
        }
        break;
      default:
        network_->Call(SimNetwork::kPeople,
                       CancelJob{.job_id = absl::StrCat("job-", i + 1'000'000)},
                       [](const Outcome&) {});
    }
  }
}

void SimPeople::Meddle(const std::vector<std::string>& workers) {
  if (jobs_.empty()) return;
  const std::string job = jobs_[sim_->Pick(static_cast<int>(jobs_.size()))];
  switch (sim_->Pick(8)) {
    case 0:
      return Cancel(job, static_cast<CancelMode>(sim_->Pick(3)));
    case 1:
    case 2:
      return Direct(job, Directive::Kind::kEvaluate);
    case 3:
    case 4:
      return Direct(job, Directive::Kind::kCheckpoint);
    case 5:
      return Drain(workers[sim_->Pick(static_cast<int>(workers.size()))], false);
    default: {
      const int64_t epoch = 2000 + sim_->Pick(3);  // no job has had as many
      network_->Call(SimNetwork::kPeople, SetKey{job, epoch, "k", "v"},
                     [this](const Outcome& outcome) {
                       if (outcome.status.ok()) sim_->Wrong("a key of another epoch was taken");
                     });
    }
  }
}

}  // namespace muster
