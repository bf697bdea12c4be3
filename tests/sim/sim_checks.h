// What a simulation is judged by: the core's invariants after every event, what must hold between
// what was written and what is known after a restart, and that nothing acknowledged is ever lost.
// In clusters of more than kSmall workers an event is followed by the checks of the jobs that it
// touched, and every so many events by all of them.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/invariants.h"
#include "tests/sim/sim_coordinator.h"

namespace muster {

class SimChecks {
 public:
  SimChecks(Sim* sim, const CoordinatorOptions& options, int num_workers);
  void Connect(const SimCoordinatorHost* host, const SimJournal* journal) {
    host_ = host;
    journal_ = journal;
  }

  // ---- by the coordinator's host
  void Handled(const std::vector<Action>& actions);
  void Written();
  void Restored();
  // Reports of about a second may be gone, and with them versions; decisions may not.
  void LostPower();

  // ---- what was answered: it must hold from now on, whoever dies
  void Submitted(const std::string& job_id, const std::string& spec_json);
  void Directed(const std::string& job_id, int64_t number, Directive::Kind kind);
  void CancelAnswered(const std::string& job_id) { cancelled_.insert(job_id); }
  void Drained(const std::string& worker, std::optional<bool> draining);  // none: under way
  void Acknowledged(const std::vector<TrainerReport>& reports);
  // What somebody reads now must not be older than what was read before.
  void Observe(const std::string& job_id);

  // A coordinator that read the journal now must know what this one knows.
  void CompareWithRestored();
  void Promises();
  const std::set<std::string>& submitted() const { return known_; }
  bool WasCancelled(const std::string& job_id) const { return cancelled_.contains(job_id); }
  // When its cause was first seen.
  absl::Duration CauseSeenAt(const std::string& job_id) const {
    const auto seen = causes_.find(job_id);
    return seen == causes_.end() ? absl::ZeroDuration() : seen->second.second;
  }
  int64_t num_checks() const { return num_checks_; }

 private:
  struct Step {
    int64_t epoch = 0, iteration = 0;
  };
  void Report(const std::vector<std::string>& faults);
  void CheckStep(const std::string& job_id, const Step& step);

  static constexpr int kSmall = 24;
  Sim* const sim_;
  const CoordinatorOptions options_;
  const int64_t all_every_;  // events
  const SimCoordinatorHost* host_ = nullptr;
  const SimJournal* journal_ = nullptr;
  InvariantChecker checker_;
  std::set<std::string> touched_;  // jobs, since the last write
  int64_t num_events_ = 0, num_checks_ = 0, num_writes_ = 0;
  std::set<std::string> known_;
  std::map<std::string, std::string> specs_;  // of submitted jobs
  std::map<std::string, std::vector<std::pair<int64_t, Directive::Kind>>> directives_;
  std::set<std::string> cancelled_;
  std::map<std::string, bool> draining_;
  std::map<std::string, Step> acknowledged_;  // the newest of a job
  std::map<std::string, std::pair<int64_t, JobState>> observed_;
  bool lost_power_ = false;                                               // and not restored yet
  std::map<std::string, std::pair<std::string, absl::Duration>> causes_;  // text, since when
  // Jobs that were seen ended, and when; they may be forgotten.
  std::map<std::string, absl::Duration> ended_;
};

// What a coordinator knows of what must outlive it, as text: for comparisons.
std::string DescribeDurable(const Coordinator& coordinator);

}  // namespace muster
