#include "coordinator/server/metrics_text.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/server/prometheus.h"

namespace muster {
namespace {

constexpr size_t kMaxJobs = 200;  // with metrics of their own: each is a set of time series
constexpr size_t kMaxName = 128;  // bytes of a job's name

std::string RenderMembership(const Membership& membership) {
  PrometheusFamily workers("muster_workers", "gauge", "Workers by their agent's state.");
  PrometheusFamily agents("muster_agents", "gauge", "Agents by state.");
  PrometheusFamily busy("muster_workers_busy", "gauge",
                        "Workers that hold a rank or a spare's place.");
  PrometheusFamily draining("muster_workers_draining", "gauge",
                            "Workers that new jobs may not use.");
  std::map<std::string, int> by_state, agents_by_state;
  for (const AgentState state :
       {AgentState::kJoining, AgentState::kAlive, AgentState::kSuspect, AgentState::kLost}) {
    by_state[AgentStateName(state)] = agents_by_state[AgentStateName(state)] = 0;
  }
  PrometheusFamily cordoned("muster_workers_cordoned", "gauge",
                            "Workers that a person keeps from new ranks.");
  PrometheusFamily quarantined("muster_workers_quarantined", "gauge",
                               "Workers whose device failed a check or was convicted by a rerun.");
  int num_busy = 0, num_draining = 0, num_cordoned = 0, num_quarantined = 0;
  for (const auto& [incarnation, agent] : membership.agents()) {
    ++agents_by_state[AgentStateName(agent.state)];
    by_state[AgentStateName(agent.state)] += static_cast<int>(agent.workers.size());
  }
  for (const auto& [name, worker] : membership.workers()) {
    num_busy += worker.assignment.has_value() ? 1 : 0;
    num_draining += worker.hold.draining ? 1 : 0;
    num_cordoned += worker.hold.cordoned ? 1 : 0;
    num_quarantined += worker.hold.quarantined.empty() ? 0 : 1;
  }
  for (const auto& [state, count] : by_state) workers.Add({{"state", state}}, count);
  for (const auto& [state, count] : agents_by_state) agents.Add({{"state", state}}, count);
  busy.Add(num_busy);
  draining.Add(num_draining);
  cordoned.Add(num_cordoned);
  quarantined.Add(num_quarantined);
  return absl::StrCat(workers.text(), agents.text(), busy.text(), draining.text(), cordoned.text(),
                      quarantined.text());
}

// Jobs that have not ended, in the order of submission.
std::vector<const JobMachine*> LiveJobs(const Coordinator& core) {
  std::vector<const JobMachine*> live;
  for (const auto& [sequence, job] : core.jobs()) {
    if (!job->ended()) live.push_back(job.get());
  }
  return live;
}

// One family a value of the newest step.
struct JobFamilies {
  PrometheusFamily info{"muster_job_info", "gauge", "1; its state and name stand in the labels."};
  PrometheusFamily epoch{"muster_job_epoch", "gauge", "Attempts that were started."};
  PrometheusFamily restarts{"muster_job_restarts_total", "counter", "Attempts after the first."};
  PrometheusFamily recoveries{"muster_job_recoveries_total", "counter",
                              "Recoveries and planned changes that ended in a step, by kind."};
  PrometheusFamily recovery_time{"muster_job_recovery_seconds_total", "counter",
                                 "From failures to the next step, of all recoveries."};
  PrometheusFamily verdicts{"muster_job_rerun_verdicts_total", "counter",
                            "Steps with a bad result that were examined, by verdict."};
  PrometheusFamily redone{"muster_job_steps_redone_total", "counter",
                          "Committed steps that were run again."};
  PrometheusFamily slow{"muster_job_stragglers", "gauge", "Ranks that are slow now, by cause."};
  PrometheusFamily world{"muster_job_world_size", "gauge", "Ranks."};
  PrometheusFamily iteration{"muster_job_iteration", "gauge", "Last committed step."};
  PrometheusFamily target{"muster_job_train_iterations", "gauge", "Steps that the job is to do."};
  PrometheusFamily samples{"muster_job_consumed_samples", "gauge", "Samples of committed steps."};
  PrometheusFamily loss{"muster_job_loss", "gauge", "Language model loss of the newest step."};
  PrometheusFamily grad_norm{"muster_job_grad_norm", "gauge",
                             "Global gradient norm of the newest step."};
  PrometheusFamily num_zeros{"muster_job_num_zeros", "gauge",
                             "Gradients of the newest step that are zero, where they are counted."};
  PrometheusFamily params_norm{"muster_job_params_norm", "gauge",
                               "Norm of the parameters after the newest step, where logged."};
  PrometheusFamily side_loss{"muster_job_side_loss", "gauge",
                             "Side losses of the MoE layers in the newest step."};
  PrometheusFamily rate{"muster_job_learning_rate", "gauge", "Of the newest step."};
  PrometheusFamily step{"muster_job_step_duration_seconds", "gauge", "Of the newest step."};
  PrometheusFamily tokens{"muster_job_tokens_per_second", "gauge",
                          "Of the newest step, all ranks."};
  PrometheusFamily memory{"muster_job_memory_bytes", "gauge",
                          "Peak of the reporting rank's live tensors."};
  PrometheusFamily reported{"muster_job_last_step_timestamp_seconds", "gauge",
                            "When the newest step was reported."};

  void Add(const JobMachine& job) {
    const PrometheusLabels labels = {{"job", job.job_id()}};
    info.Add({{"job", job.job_id()},
              {"name", job.spec().name.substr(0, kMaxName)},
              {"state", JobStateName(job.state())}},
             1);
    epoch.Add(labels, static_cast<double>(job.epoch()));
    restarts.Add(labels, job.restarts());
    for (const auto& [kind, count] : job.totals().count_by_kind) {
      recoveries.Add({{"job", job.job_id()}, {"kind", kind}}, count);
    }
    recovery_time.Add(labels, job.totals().seconds);
    for (const auto& [verdict, count] : job.totals().rerun_verdicts) {
      verdicts.Add({{"job", job.job_id()}, {"verdict", verdict}}, count);
    }
    redone.Add(labels, static_cast<double>(job.totals().steps_redone));
    std::map<std::string, int> by_cause;
    for (const auto& [rank, cause] : job.stragglers()) ++by_cause[StragglerCauseName(cause)];
    for (const auto& [cause, count] : by_cause) {
      slow.Add({{"job", job.job_id()}, {"cause", cause}}, count);
    }
    world.Add(labels, job.world_size());
    iteration.Add(labels, static_cast<double>(job.iteration()));
    target.Add(labels, static_cast<double>(job.train_iters()));
    samples.Add(labels, static_cast<double>(job.consumed_samples()));
    if (job.history().steps().empty()) return;
    const StepRecord& record = job.history().steps().newest().value;
    if (record.step.lm_loss.has_value()) loss.Add(labels, *record.step.lm_loss);
    if (record.step.grad_norm.has_value()) grad_norm.Add(labels, *record.step.grad_norm);
    if (record.step.num_zeros.has_value())
      num_zeros.Add(labels, static_cast<double>(*record.step.num_zeros));
    if (record.step.params_norm.has_value()) params_norm.Add(labels, *record.step.params_norm);
    for (const auto& [name, value] : kStepSideLosses) {
      if ((record.step.*value).has_value())
        side_loss.Add({{"job", job.job_id()}, {"loss", name}}, *(record.step.*value));
    }
    rate.Add(labels, record.step.learning_rate);
    step.Add(labels, record.step.elapsed_ms / 1e3);
    tokens.Add(labels, record.step.tokens_per_s);
    memory.Add(labels, static_cast<double>(record.step.memory_bytes));
    reported.Add(labels, absl::ToDoubleSeconds(record.time - absl::UnixEpoch()));
  }
  std::string Text() const {
    std::string text;
    for (const PrometheusFamily* family :
         {&info,     &epoch,     &restarts,  &recoveries,  &recovery_time, &redone,
          &verdicts, &slow,      &world,     &iteration,   &target,        &samples,
          &loss,     &grad_norm, &num_zeros, &params_norm, &side_loss,     &rate,
          &step,     &tokens,    &memory,    &reported}) {
      absl::StrAppend(&text, family->text());
    }
    return text;
  }
};

std::string RenderJobs(const Coordinator& core) {
  PrometheusFamily jobs("muster_jobs", "gauge", "Jobs held, by state.");
  std::map<std::string, int> by_state;
  for (const auto& [sequence, job] : core.jobs()) ++by_state[JobStateName(job->state())];
  for (const auto& [state, count] : by_state) jobs.Add({{"state", state}}, count);

  const std::vector<const JobMachine*> live = LiveJobs(core);
  JobFamilies families;
  for (size_t i = 0; i < live.size() && i < kMaxJobs; ++i) families.Add(*live[i]);
  PrometheusFamily left_out("muster_jobs_without_metrics", "gauge",
                            "Jobs that have not ended and are too many for metrics of their own.");
  left_out.Add(live.size() > kMaxJobs ? static_cast<double>(live.size() - kMaxJobs) : 0);
  return absl::StrCat(jobs.text(), families.Text(), left_out.text());
}

}  // namespace

std::string RenderMetrics(const Coordinator& core) {
  PrometheusFamily stale("muster_stale_reports_total", "counter",
                         "Reports of assignments that are over: dropped.");
  stale.Add(static_cast<double>(core.num_stale_reports()));
  PrometheusFamily storage("muster_storage_writable", "gauge",
                           "1 while the journal can be written; at 0 nothing is admitted.");
  storage.Add(core.storage().writable ? 1 : 0);
  return absl::StrCat(RenderMembership(core.membership()), RenderJobs(core), stale.text(),
                      storage.text());
}

std::string RenderProcessMetrics() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return time.tv_sec + 1e-6 * time.tv_usec; };
  PrometheusFamily cpu("process_cpu_seconds_total", "counter", "User and system CPU time.");
  cpu.Add(seconds(usage.ru_utime) + seconds(usage.ru_stime));
  PrometheusFamily memory("process_resident_memory_bytes", "gauge", "Resident memory.");
  int64_t total = 0, resident = 0;  // pages
  if (std::ifstream("/proc/self/statm") >> total >> resident) {
    memory.Add(static_cast<double>(resident * sysconf(_SC_PAGESIZE)));
  }
  return absl::StrCat(cpu.text(), memory.text());
}

}  // namespace muster
