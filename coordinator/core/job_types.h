// The values that a job's machine works with: who holds what, why it failed, what is to be done.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/control/messages.h"
#include "coordinator/core/durable.h"
#include "coordinator/core/job_state.h"
#include "coordinator/core/metrics.h"
#include "coordinator/core/phase_limits.h"
#include "coordinator/core/types.h"

namespace muster {

// Who holds a rank (or a place beside the ranks) in the current epoch.
struct RankSlot {
  enum class Trainer { kNone, kLaunched, kExited };
  std::string worker, incarnation, node, host_address, device;
  int num_threads = 1;
  Trainer trainer = Trainer::kNone;
  std::string phase = "launched", phase_detail;
  RankStage stage = RankStage::kStart;  // follows from the members around it
  absl::Time last_report = absl::InfinitePast();
  std::optional<DoneMessage> done;
  bool failed_in_collective = false;
  bool held = false;       // the job holds the worker, with or without a trainer on it
  bool lost = false;       // the worker's agent is; there is nobody to start a trainer
  bool condemned = false;  // this trainer is stopped, and another process takes its place
  int buddy = -1;          // rank that keeps a copy of this one's snapshots
  bool unsaved = false;    // it is in the list of ranks whose record has changed
};

// A worker that the job holds beside those of its ranks.
struct ExtraSlot {
  // kSpare: warm, or about to be. kHelper: gives its state to those that take its place, then
  // leaves. kLeaving: of an older epoch, and told to end; nothing is expected of it.
  enum class Role { kSpare, kHelper, kLeaving };
  Role role = Role::kSpare;
  int rank = -1;      // in the assignment that the worker holds
  int64_t epoch = 0;  // of that assignment
  RankSlot slot;
};

struct FailureCause {
  std::optional<int> rank, exit_code, signal;
  std::string kind;  // FailureKindName
  std::string worker, node, text;
  int64_t iteration = 0, epoch = 0;
  std::vector<std::string> last_log_lines;
  absl::Time time;
  bool symptom = false;
  bool by_trainer = false;  // it ended or gave up by itself: not a lost node, not a kill
  bool hopeless = false;    // it would be the same every time
  int restarts = 0;         // of the job, before it
};

// How a rank of a new epoch gets its trainer.
enum class RankSource { kSurvivor, kInPlace, kSpare, kIdle, kMoved };
const char* RankSourceName(RankSource source);  // "survivor", "in_place", "spare", ...

// What the next epoch is made of.
struct EpochPlan {
  std::vector<RankSlot> ranks;
  std::vector<RankSource> sources;  // of each rank
  std::vector<ExtraSlot> extras;    // spares (rank -1), helpers (rank >= ranks.size())
  int64_t data_parallel_size = 0;
  std::string spec_json;     // as the trainers get it; empty: as it was submitted
  std::string examine_json;  // see LaunchMessage
  std::string reason;        // for people
  std::string change;        // of RecoveryPlan, or "move", "grow"
};

// From a failure until the job has stepped again. One incident may need several epochs.
struct Incident {
  bool open = false;
  bool planned = false;  // it is no failure but a change that was asked for
  int64_t number = 0;    // counts incidents
  // Those before `failed_at` have not come yet.
  absl::Time failed_at = absl::InfinitePast(), aborted_at = absl::InfinitePast(),
             launched_at = absl::InfinitePast(), started_at = absl::InfinitePast(),
             formed_at = absl::InfinitePast(), loaded_at = absl::InfinitePast();
  int64_t iteration = 0;              // committed at the failure
  std::string what;                   // "rank 3 in place on n1/0"
  std::string kind;                   // "in_place", "spare", "shrink", ...
  std::vector<std::string> followed;  // what else failed on the way, bounded
  // Workers whose trainers have failed in it, once for each time; bounded.
  std::vector<std::string> hit_workers;
  std::optional<RestoredMessage> restored;
};

// What recoveries have cost so far.
struct RecoveryTotals {
  std::map<std::string, double> count_by_kind;
  double seconds = 0;  // of all, from the failure to the next step
  int64_t steps_redone = 0;
  std::map<std::string, double> rerun_verdicts;  // how often each, of steps with a bad result
};

// "was killed by signal 9 (SIGKILL)"
std::string HowItExited(const ExitedReport& exited);
inline constexpr size_t kMaxPhaseName = 64;  // bytes

// ---- effects, to be carried out in order
struct LaunchRanks {};
struct LaunchSpare {  // within the epoch
  std::string worker;
};
struct PublishUniqueId {};
struct PublishDirective {
  Directive directive;
};
struct AbortEpoch {
  std::string reason;
};
struct StopRanks {};  // every rank and extra whose trainer is kLaunched
struct StopOne {      // one trainer, by its worker, without a grace
  std::string worker, incarnation, reason;
  int64_t epoch = 0;  // of its assignment
};
struct ProbeRanks {  // where are all trainers of the epoch?
  int64_t request = 0;
};
struct EndRendezvous {
  std::string reason;
};
struct ReleaseWorker {  // it is idle again
  std::string worker;
  int64_t epoch = 0;
  int rank = 0;
};
using JobEffect =
    std::variant<LaunchRanks, LaunchSpare, PublishUniqueId, PublishDirective, AbortEpoch, StopRanks,
                 StopOne, ProbeRanks, EndRendezvous, ReleaseWorker>;
using JobEffects = std::vector<JobEffect>;

struct JobOptions {
  absl::Duration symptom_window = absl::Milliseconds(2500);  // or heartbeat_timeout + 1 s
  PhaseLimitOptions phases;
  absl::Duration stop_limit = absl::Minutes(1);  // a stop directive not obeyed: kill
  absl::Duration checkpoint_and_stop_limit = absl::Minutes(15);
  absl::Duration stop_grace = absl::Seconds(3);  // the agent's patience with its trainer
  // Trainers that have not ended this long after that are told again.
  absl::Duration release_limit = absl::Seconds(30);
  // A condemned trainer whose end is not heard of within this is left behind with its worker.
  absl::Duration exit_limit = absl::Seconds(10);
  // A change that was asked for waits this long for its spares to be warm, then for all ranks to
  // come to the end of their step.
  absl::Duration warm_limit = absl::Seconds(20), yield_limit = absl::Seconds(60);
  absl::Duration growth_interval = absl::Seconds(10);
  // Ticks further apart: this process stood still, and the time counts for nobody.
  absl::Duration standstill = absl::Milliseconds(500);  // as for signs of life
  HistoryLimits history;
};

// All that is saved of one job: values of records, with their keys where there are many.
struct JobRecords {
  int64_t sequence = 0;
  const std::string *identity = nullptr, *state = nullptr, *epoch = nullptr, *cause = nullptr;
  std::map<int64_t, const std::string*> ranks, directives;
  std::vector<const LedgerRow*> ledger;  // by kind and index
};

}  // namespace muster
