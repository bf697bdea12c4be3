// What is known of a job, for whoever reads it. Only its machine (job_machine.h) changes it.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/recovery/restart_budget.h"
#include "common/spec/job_spec.h"
#include "common/topology/rank_topology.h"
#include "coordinator/core/cause_chain.h"
#include "coordinator/core/directives.h"
#include "coordinator/core/job_moves.h"
#include "coordinator/core/job_state.h"
#include "coordinator/core/job_types.h"
#include "coordinator/core/metrics.h"
#include "coordinator/core/phase_limits.h"
#include "coordinator/core/rank_set.h"
#include "coordinator/core/types.h"

namespace muster {

RestartBudgetOptions BudgetOptionsOf(const JobSpec& spec);
// The coordinator's limits, with those that the job's spec sets.
PhaseLimitOptions PhasesOf(PhaseLimitOptions phases, const JobSpec& spec);

class JobFacts {
 public:
  struct Identity {
    std::string job_id, spec_json, idempotency_key;
    int64_t sequence = 0;  // of submission
  };

  const std::string& job_id() const { return identity_.job_id; }
  const Identity& identity() const { return identity_; }
  const JobSpec& spec() const { return spec_; }
  // Of the current epoch; of the spec before the first. Elastic jobs may be smaller than their
  // spec.
  int world_size() const;
  int64_t data_parallel_size() const { return data_parallel_size_; }
  TopologySpec topology() const;  // of the current epoch
  // The spec as the trainers of this epoch get it.
  const std::string& launch_spec_json() const {
    return spec_override_.empty() ? identity_.spec_json : spec_override_;
  }
  const std::string& examine_json() const { return examine_json_; }
  int num_helpers() const;
  DeviceKind kind() const;
  JobState state() const { return state_; }
  const std::string& reason() const { return reason_; }
  int64_t version() const { return version_; }
  int64_t epoch() const { return epoch_; }
  int64_t iteration() const { return iteration_; }
  int64_t consumed_samples() const { return consumed_samples_; }
  double flops_so_far() const { return flops_so_far_; }
  int64_t train_iters() const { return train_iters_; }
  int restarts() const { return restarts_; }
  int exit_code() const { return exit_code_; }
  bool ended() const { return IsEnded(state_); }
  bool released() const;  // ended, and no worker is held by it
  bool aborted() const { return aborted_; }
  int num_launched() const { return num_launched_; }  // trainers that have not ended
  bool cancelling() const { return cancel_.has_value() && !ended(); }
  // The first of its failures that still count (cause_chain.h).
  const std::optional<FailureCause>& cause() const { return causes_.first(); }
  const std::vector<RankSlot>& ranks() const { return ranks_; }
  const std::vector<ExtraSlot>& extras() const { return extras_; }
  int num_spares() const;
  int num_held() const { return num_held_; }  // workers
  // Every worker that it holds, with the assignment by which it does.
  struct Held {
    AssignmentRef assignment;
    const RankSlot* slot;
  };
  std::vector<Held> HeldWorkers() const;
  // nullptr: not held by this job beside its ranks.
  const ExtraSlot* FindExtra(const std::string& worker) const;
  const DirectiveLog& directives() const { return directives_; }
  int64_t directives_through() const { return directives_through_; }
  const std::string& unique_id() const { return unique_id_; }
  const JobHistory& history() const { return history_; }
  absl::Duration stop_grace() const { return options_.stop_grace; }
  absl::Time submitted_at() const { return submitted_at_; }
  std::optional<absl::Time> started_at() const { return started_at_; }
  std::optional<absl::Time> ended_at() const { return ended_at_; }
  // While active: "ranks 0-2: training; ranks 3 (node b): loading".
  std::string Progress() const;
  absl::Time seen_at() const { return seen_at_; }  // the newest event or tick
  std::optional<WaitPhase> wait_phase() const { return clock_.phase(); }
  // Some rank has said that it is done: the others may be, too, and make no more steps.
  bool some_are_done() const { return num_done_ > 0; }
  // As far as ranks have said: with one of them, all of this epoch have their state.
  bool some_train() const {
    return NumIn(RankStage::kStep) + NumIn(RankStage::kEvaluation) + NumIn(RankStage::kSave) > 0;
  }
  const PhaseLimits& phase_limits() const { return clock_.limits(); }
  // The newest step of this epoch that is known to be committed, by a report or a heartbeat.
  int64_t committed() const { return committed_; }

  // ---- recovery and planned changes
  const Incident& incident() const { return incident_; }
  const RecoveryTotals& totals() const { return totals_; }
  // Steps that are left out, since they ended their trainers again and again.
  const std::vector<int64_t>& skipped_steps() const { return skipped_steps_; }
  // Some condemned trainers have not ended, and there is still time to wait for that.
  bool awaits_exits() const { return exit_deadline_.has_value(); }
  const std::optional<PlannedChange>& change() const { return change_; }
  absl::Time grew_at() const { return grew_at_; }
  // Ranks that should leave their workers (drained, in quarantine) and have nowhere to go; empty:
  // none.
  const std::string& drain_waits() const { return drain_waits_; }
  // Restored, and its agents have not had their time to come back.
  bool limits_stand_still() const { return limits_stand_still_; }
  // RERUNNING while ranks run an examined step in other places.
  JobState TrainingState() const;

 protected:
  JobFacts(Identity identity, JobSpec spec, int64_t train_iters, const JobOptions& options,
           absl::Time submitted_at);
  ~JobFacts() = default;  // nobody holds one by this type alone

  int NumIn(RankStage stage) const { return num_in_stage_[static_cast<int>(stage)]; }
  int num_early() const;
  bool HasTrained() const { return !history_.steps().empty() || iteration_ > 0; }
  bool IsForming() const { return state_ == JobState::kForming || state_ == JobState::kRecovering; }

  const Identity identity_;
  const JobSpec spec_;
  const int64_t train_iters_;
  const JobOptions options_;
  const absl::Time submitted_at_;

  JobState state_ = JobState::kSubmitted;
  std::string reason_;
  int64_t version_ = 1;
  int64_t epoch_ = 0;
  std::vector<RankSlot> ranks_;  // empty before the first epoch
  std::vector<ExtraSlot> extras_;
  std::string unique_id_;           // of this epoch; empty: not known yet
  bool aborted_ = false;            // this epoch is over
  int64_t directives_through_ = 0;  // applied before this epoch; <= directives_.applied()
  DirectiveLog directives_;
  JobHistory history_;

  int64_t iteration_ = 0, consumed_samples_ = 0;
  double flops_so_far_ = 0;
  int restarts_ = 0;
  int exit_code_ = 0;
  std::optional<absl::Time> started_at_, ended_at_;

  std::optional<CancelMode> cancel_;
  std::string cancel_reason_;
  // Limits that run now, beside that of the phase.
  std::optional<absl::Time> symptom_deadline_, cancel_deadline_, release_deadline_;
  bool limits_stand_still_ = false;  // see StartLimits

  // Recovery.
  RestartBudget budget_;
  CauseChain causes_;
  Incident incident_;
  RecoveryTotals totals_;
  bool seeking_cause_ = false;      // this epoch was aborted by a symptom
  int64_t data_parallel_size_ = 0;  // of this epoch; 0: before the first
  int64_t layout_epoch_ = 1;        // the first epoch of the current number of replicas
  std::string spec_override_, examine_json_;
  std::vector<int64_t> skipped_steps_;
  std::optional<absl::Time> workers_deadline_, exit_deadline_;
  std::string waits_for_;  // workers, and which
  std::optional<PlannedChange> change_;
  absl::Time grew_at_ = absl::InfinitePast();
  std::string drain_waits_;  // not durable: a restarted coordinator says it again

  // How far the ranks have come; follows from ranks_ but for the clock's samples.
  PhaseClock clock_;
  std::map<std::string, RankSet> by_phase_;
  std::array<int, kNumRankStages> num_in_stage_{};
  int num_launched_ = 0, num_done_ = 0;  // extras count in the first
  int num_held_ = 0;
  bool stepped_ = false;  // a step of this epoch is known to be committed
  int64_t committed_ = 0;
  std::map<std::string, int64_t> agent_iteration_;  // by incarnation, from heartbeats
  absl::Time seen_at_ = absl::InfinitePast();       // the newest event or tick
  absl::Time ticked_at_ = absl::InfinitePast();     // the last tick
  bool not_released_noted_ = false, cancel_extended_ = false;
};

}  // namespace muster
