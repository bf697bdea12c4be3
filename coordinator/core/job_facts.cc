#include "coordinator/core/job_facts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/rerun/examination.h"
#include "common/schedule/from_spec.h"

namespace muster {
namespace {

constexpr int kMaxNodesNamed = 4;
constexpr int kMaxRanksLookedAt = 256;  // for the names of their nodes

}  // namespace

RestartBudgetOptions BudgetOptionsOf(const JobSpec& spec) {
  return {.max_restarts = spec.recovery.max_restarts,
          .window = absl::Seconds(spec.recovery.restart_window_s),
          .max_failures_of_step = spec.recovery.max_failures_of_step};
}

PhaseLimitOptions PhasesOf(PhaseLimitOptions phases, const JobSpec& spec) {
  phases.CapStep(absl::Seconds(spec.recovery.watchdog_timeout_s));
  return phases;
}

JobFacts::JobFacts(Identity identity, JobSpec spec, int64_t train_iters, const JobOptions& options,
                   absl::Time submitted_at)
    : identity_(std::move(identity)),
      spec_(std::move(spec)),
      train_iters_(train_iters),
      options_(options),
      submitted_at_(submitted_at),
      history_(static_cast<int>(spec_.resources.world_size), options.history),
      budget_(BudgetOptionsOf(spec_)),
      causes_(BudgetOptionsOf(spec_).window),
      clock_(PhasesOf(options.phases, spec_)) {}

DeviceKind JobFacts::kind() const {
  return spec_.resources.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu;
}

bool JobFacts::released() const { return ended() && num_held_ == 0; }

int JobFacts::world_size() const {
  return ranks_.empty() ? static_cast<int>(spec_.resources.world_size)
                        : static_cast<int>(ranks_.size());
}

TopologySpec JobFacts::topology() const {
  TopologySpec topology = TopologyOf(spec_);
  topology.world_size = world_size();
  return topology;
}

JobState JobFacts::TrainingState() const {
  return OrdersRerun(examine_json_) && !stepped_ ? JobState::kRerunning : JobState::kRunning;
}

int JobFacts::num_early() const {
  return NumIn(RankStage::kStart) + NumIn(RankStage::kForming) + NumIn(RankStage::kLoad);
}

std::vector<JobFacts::Held> JobFacts::HeldWorkers() const {
  std::vector<Held> held;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const RankSlot& slot = ranks_[rank];
    if (slot.held) held.push_back({{slot.worker, job_id(), epoch_, rank}, &slot});
  }
  for (const ExtraSlot& extra : extras_) {
    if (!extra.slot.held) continue;
    held.push_back({{extra.slot.worker, job_id(), extra.epoch, extra.rank}, &extra.slot});
  }
  return held;
}

const ExtraSlot* JobFacts::FindExtra(const std::string& worker) const {
  const auto found = std::find_if(extras_.begin(), extras_.end(), [&](const ExtraSlot& extra) {
    return extra.slot.worker == worker;
  });
  return found == extras_.end() ? nullptr : &*found;
}

int JobFacts::num_spares() const {
  return static_cast<int>(std::count_if(extras_.begin(), extras_.end(), [](const auto& extra) {
    return extra.role == ExtraSlot::Role::kSpare;
  }));
}

int JobFacts::num_helpers() const {
  return static_cast<int>(std::count_if(extras_.begin(), extras_.end(), [](const auto& extra) {
    return extra.role == ExtraSlot::Role::kHelper;
  }));
}

std::string JobFacts::Progress() const {
  if (!IsActive(state_)) return "";
  std::vector<std::string> parts;
  for (const auto& [phase, members] : by_phase_) {
    std::set<std::string> nodes;
    int looked_at = 0;
    if (!IsTrainingPhase(phase)) {
      members.ForEach([&](int rank) {
        nodes.insert(ranks_[rank].node);
        return ++looked_at < kMaxRanksLookedAt && nodes.size() <= kMaxNodesNamed;
      });
    }
    std::vector<std::string> named(nodes.begin(), nodes.end());
    const bool more = named.size() > kMaxNodesNamed || looked_at == kMaxRanksLookedAt;
    if (named.size() > kMaxNodesNamed) named.resize(kMaxNodesNamed);
    parts.push_back(absl::StrCat("ranks ", members.Text(), named.empty() ? "" : " (node ",
                                 absl::StrJoin(named, ", "), more ? ", ..." : "",
                                 named.empty() ? "" : ")", ": ", phase));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace muster
