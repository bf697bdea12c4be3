// Ranks that die at once and the assignments that follow, and answers to probes.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "benchmarks/control_plane/muster_fleet.h"

namespace muster::bench {
namespace {

constexpr double kSettle = 0.3;  // no new assignment for so long: there is none to come
constexpr double kLimit = 60;

}  // namespace

// The trainers of this share of the ranks, spread over the nodes, end by SIGKILL. Until every agent
// holds the last assignment that follows; then the job forms again and steps.
nlohmann::json MusterFleet::Lose(double share) {
  const int count = std::max(1, static_cast<int>(share * shape_.num_workers));
  const int stride = shape_.num_workers / count;
  std::vector<std::vector<v1::TrainerReport>> reports(agents_.size());
  for (const auto& agent : agents_) {
    MutexLock lock(&agent->mu);
    for (const v1::AssignmentRef& held : agent->assignments) {
      if (held.rank() % stride != stride - 1 || held.rank() / stride >= count) continue;
      reports[agent->index].push_back(ReportOf(held));
      reports[agent->index].back().mutable_exited()->set_signal(SIGKILL);
    }
  }
  const int64_t before = epoch_;
  const double start = Now();
  for (const auto& agent : agents_) {
    if (!reports[agent->index].empty())
      Send(agent.get(), std::move(reports[agent->index]), /*awaited=*/false);
  }
  nlohmann::json result = AwaitAssignments(before, start);
  result["lost"] = count;
  result["epochs"] = epoch_ - before;
  const double forming = Now();  // what was waited for in vain before does not count
  (void)Form();
  result["stepped"] = result["max"].get<double>() + Now() - forming;
  return result;
}

// When each agent got its assignment of the newest epoch, once all have one of the same.
nlohmann::json MusterFleet::AwaitAssignments(int64_t before, double start) {
  for (;;) {
    std::vector<double> times;
    int64_t least = INT64_MAX, newest = 0;
    for (const auto& agent : agents_) {
      MutexLock lock(&agent->mu);
      const int64_t epoch = agent->assignments.empty() ? 0 : agent->assignments[0].epoch();
      least = std::min(least, epoch);
      newest = std::max(newest, epoch);
      times.push_back(agent->launched_at - start);
    }
    std::sort(times.begin(), times.end());
    if (least == newest && newest > before && Now() - start > times.back() + kSettle) {
      TakeAssignments();
      return Summary(times);
    }
    if (Now() - start > kLimit) {
      std::fprintf(stderr, "not all agents were assigned again within %.0f s\n", kLimit);
      std::_Exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Every trainer is at work: nobody hangs here, however long the commands of a benchmark take.
void MusterFleet::AnswerProbe(Simulated* agent, const v1::Probe& probe) {
  std::vector<v1::TrainerReport> reports;
  {
    MutexLock lock(&agent->mu);
    for (const v1::AssignmentRef& held : agent->assignments) {
      if (held.job_id() != probe.job_id() || held.epoch() != probe.epoch()) continue;
      reports.push_back(ReportOf(held));
      v1::ProbeReport* report = reports.back().mutable_probe();
      report->set_request(probe.request());
      report->set_running(true);
      report->set_process_state("R");
      report->set_cpu_ms(Now() * 1000);
      report->mutable_reply()->set_iteration(iteration_);
      report->mutable_reply()->set_phase("training");
      report->mutable_reply()->set_thread_cpu_ms(Now() * 1000);
    }
  }
  if (!reports.empty()) Send(agent, std::move(reports), /*awaited=*/false);
}

}  // namespace muster::bench
