#include "coordinator/server/status_view.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/topology/placement.h"
#include "coordinator/server/job_convert.h"

namespace muster {
namespace {

constexpr size_t kMaxActive = 20, kMaxWaiting = 50, kMaxEnded = 20;  // jobs
constexpr size_t kMaxPoints = 300;                                   // of a plot
constexpr size_t kMaxHoldText = 120;                                 // characters
constexpr size_t kMaxEvents = 6, kMaxPhases = 12, kMaxConditions = 40;

// Every n-th step, so that kMaxPoints are not exceeded, and the newest.
std::vector<PlotPoint> LossesOf(const JobHistory& history) {
  const auto& steps = history.steps().entries();
  const size_t stride = steps.size() / kMaxPoints + 1;
  std::vector<PlotPoint> points;
  const auto add = [&](const StepMessage& step) {
    points.push_back(
        {step.iteration, step.lm_loss.value_or(std::numeric_limits<double>::quiet_NaN())});
  };
  for (size_t i = 0; i < steps.size(); i += stride) add(steps[i].value.step);
  if (!steps.empty() && (steps.size() - 1) % stride != 0) add(steps.back().value.step);
  return points;
}

std::vector<PhaseRow> PhasesOf(const JobMachine& job) {
  struct Group {
    std::vector<int> ranks;
    std::set<std::string> nodes;
  };
  std::map<std::string, Group> groups;
  for (size_t rank = 0; rank < job.ranks().size(); ++rank) {
    const RankSlot& slot = job.ranks()[rank];
    const bool exited = slot.trainer == RankSlot::Trainer::kExited;
    Group& group = groups[exited ? "exited" : slot.phase];
    group.ranks.push_back(static_cast<int>(rank));
    group.nodes.insert(slot.node);
  }
  std::vector<PhaseRow> rows;
  for (const auto& [phase, group] : groups) {
    PhaseRow row{.phase = phase,
                 .ranks = CompressRanks(group.ranks),
                 .num_ranks = static_cast<int>(group.ranks.size()),
                 .nodes = {},
                 .num_nodes = static_cast<int>(group.nodes.size())};
    std::vector<std::string> nodes(group.nodes.begin(), group.nodes.end());
    std::sort(nodes.begin(), nodes.end(), NaturalLess);
    nodes.resize(std::min(nodes.size(), kMaxNodesListed));
    row.nodes = std::move(nodes);
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const PhaseRow& a, const PhaseRow& b) { return a.num_ranks > b.num_ranks; });
  rows.resize(std::min(rows.size(), kMaxPhases));
  return rows;
}

JobView ViewOf(const JobMachine& job, const SignsOfLife& signs) {
  JobView view{.status = ToProto(job, JobDetail::kSummary, signs),
               .state = JobStateName(job.state())};
  const JobHistory& history = job.history();
  if (!history.evaluations().empty()) {
    const EvaluationMessage& newest = history.evaluations().newest().value;
    v1::Evaluation* to = view.status.add_evaluations();
    to->set_iteration(newest.iteration);
    to->set_split(newest.split);
    to->set_lm_loss(newest.lm_loss);
    to->set_ppl(newest.ppl);
  }
  if (!history.checkpoints().empty()) {
    const CheckpointMessage& newest = history.checkpoints().newest().value;
    v1::Checkpoint* to = view.status.add_checkpoints();
    to->set_iteration(newest.iteration);
    to->set_path(newest.path);
  }
  if (!job.ended()) view.phases = PhasesOf(job);
  view.losses = LossesOf(history);
  const auto& events = history.events().entries();
  for (auto it = events.rbegin(); it != events.rend() && view.events.size() < kMaxEvents; ++it) {
    view.events.push_back(absl::StrCat(
        absl::FormatTime("%H:%M:%S", it->value.time, absl::UTCTimeZone()), " ", it->value.kind,
        it->value.text.empty() ? "" : ": ", it->value.text.substr(0, 300)));
  }
  return view;
}

void AddWorkers(const Membership& membership, StatusView* view) {
  struct Group {
    std::set<std::string> nodes;
    int num_workers = 0;
    bool trouble = false;
  };
  std::map<std::string, Group> groups;
  for (const auto& [incarnation, agent] : membership.agents()) {
    for (const std::string& name : agent.workers) {
      const Worker* worker = membership.FindWorker(name);
      if (worker == nullptr || worker->incarnation != incarnation) continue;
      ++view->num_workers;
      const bool alive = agent.state == AgentState::kAlive;
      view->num_idle += membership.IsIdle(*worker) ? 1 : 0;
      view->num_busy += worker->assignment.has_value() ? 1 : 0;
      view->num_draining += worker->hold.draining ? 1 : 0;
      view->num_cordoned += worker->hold.cordoned ? 1 : 0;
      view->num_quarantined += worker->hold.quarantined.empty() ? 0 : 1;
      view->num_not_alive += alive ? 0 : 1;
      Group& group = groups[absl::StrCat(
          AgentStateName(agent.state), ", ", DeviceKindName(worker->info.kind), ", ",
          worker->assignment.has_value() ? absl::StrCat("busy with ", worker->assignment->job_id)
                                         : "idle",
          worker->hold.any() ? ", " : "", worker->hold.Text().substr(0, kMaxHoldText))];
      group.nodes.insert(agent.node);
      ++group.num_workers;
      group.trouble = !alive || !worker->hold.quarantined.empty();
    }
  }
  for (const auto& [condition, group] : groups) {
    NodeRow row{.condition = condition,
                .nodes = {group.nodes.begin(), group.nodes.end()},
                .num_nodes = static_cast<int>(group.nodes.size()),
                .num_workers = group.num_workers,
                .trouble = group.trouble};
    std::sort(row.nodes.begin(), row.nodes.end(), NaturalLess);
    row.nodes.resize(std::min(row.nodes.size(), kMaxNodesListed));
    view->nodes.push_back(std::move(row));
  }
  std::stable_sort(view->nodes.begin(), view->nodes.end(), [](const NodeRow& a, const NodeRow& b) {
    return std::make_pair(a.trouble, a.num_workers) > std::make_pair(b.trouble, b.num_workers);
  });
  view->nodes.resize(std::min(view->nodes.size(), kMaxConditions));
}

}  // namespace

StatusView StatusViewOf(const Coordinator& core, absl::Time now) {
  StatusView view{.now = now};
  if (!core.storage().writable) view.storage_trouble = core.storage().reason;
  AddWorkers(core.membership(), &view);
  const auto add = [signs = core.Signs()](const JobMachine& job, size_t most,
                                          std::vector<JobView>* to, int* left_out) {
    if (to->size() < most) {
      to->push_back(ViewOf(job, signs));
    } else {
      ++*left_out;
    }
  };
  for (const auto& [sequence, job] : core.jobs()) {
    if (IsActive(job->state())) add(*job, kMaxActive, &view.active, &view.active_left_out);
    if (!IsActive(job->state()) && !job->ended()) {
      add(*job, kMaxWaiting, &view.waiting, &view.waiting_left_out);
    }
  }
  for (auto it = core.jobs().rbegin(); it != core.jobs().rend(); ++it) {
    if (it->second->ended()) add(*it->second, kMaxEnded, &view.ended, &view.ended_left_out);
  }
  return view;
}

}  // namespace muster
