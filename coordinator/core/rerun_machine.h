// The arbiter of a job's reruns (design 3): a step whose bad result repeats in place is run once
// more with ranks on other workers, and the two runs are compared. Pure. What it knows is durable
// (rerun_durable.cc): a restarted coordinator goes on where the examination was.
//
//   kIdle -1-> kInPlace -2-> kElsewhere -3-> kIdle
//   1 ranks report that they hold a step; all of them yield.
//   2 there are other places for those that may be to blame: the epoch is raised with them, and an
//     order to run the step again. Else the job is told to leave with 16.
//   3 ranks report that run; the verdict, or 2 again while more than one worker is suspected.
//
// One worker at most is taken to be at fault. Suspected is at first each worker of the model
// replica that saw the bad result. A run elsewhere gives suspects' ranks to others, and exchanges
// no more ranks than it must (NextPlaces). What a run teaches (Learn):
//   - all is equal: whoever has changed its rank computes as another one does, and is cleared;
//   - a rank gave something else although all that it was given is equal: one of the two workers
//     that had it is at fault;
//   - the bad result is still there: the one at fault is still in that replica.
// With no suspect left and no difference seen, the result is right, whatever it is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rerun/examination.h"
#include "coordinator/core/durable.h"
#include "coordinator/core/job_moves.h"

namespace muster {

enum class RerunVerdict { kTransient, kPersistent, kUnattributed, kCorrect };
const char* RerunVerdictName(RerunVerdict verdict);  // "transient", ...

struct RerunOutcome {
  RerunVerdict verdict = RerunVerdict::kTransient;
  int64_t iteration = 0;
  int rank = -1;       // kTransient: that saw it; kPersistent: that computed it
  std::string worker;  // kPersistent: to be quarantined
  std::string text;    // the evidence, for people
};

// The job ends with the step that all ranks hold (Directive::Kind::kCheckpointAndExit).
struct LeaveRuling {
  int64_t iteration = 0;
  int exit_code = 0;
  std::string reason;
};

// What is to be done with a step that all ranks hold.
struct RerunRuling {
  std::optional<LeaveRuling> leave;  // else `order`, in another epoch
  ExamineOrder order;
  std::vector<RankMove> moves;  // to workers that the job holds
  std::optional<RerunOutcome> outcome;
  // kPersistent, and no spare is there: the rank on the guilty worker, which must not go on.
  std::optional<int> condemned;
};

class RerunArbiter {
 public:
  enum class State { kIdle, kInPlace, kElsewhere };
  explicit RerunArbiter(bool continue_on_correct) : continue_on_correct_(continue_on_correct) {}

  // What is reported from now on is of this epoch. Reports of one that ended without a ruling are
  // dropped: its ranks begin the step anew.
  void SetEpoch(int64_t epoch);
  // A rank's ExamineMessage. An outcome for a transient error, once a step. INVALID_ARGUMENT: it
  // cannot be read.
  absl::StatusOr<std::optional<RerunOutcome>> OnReport(int rank, const std::string& worker,
                                                       absl::string_view json);
  // Some rank has reported since the last ruling: those that yield now hold a step.
  bool holds() const { return !reports_.empty(); }
  State state() const { return state_; }

  struct Places {
    std::vector<std::string> workers;  // by rank
    std::vector<int> replicas;         // by rank: which copy of the model it computes for
    std::vector<std::string> spares;   // of the job, good ones
    std::set<std::string> failed;      // whose devices have failed their check
  };
  // All ranks have yielded.
  RerunRuling Rule(const Places& places);
  // The epoch has ended otherwise: the step begins anew, and so does its examination.
  void Forget();

  // ---- durability (rerun_durable.cc): record `base` ("job/7/rerun"), and `base`/run/rank for each
  // report. Reports are kept as long as all of them take kMaxDurableBytes at most; after a restart
  // a step whose reports are not all there begins anew.
  static constexpr size_t kMaxDurableBytes = 64 << 20;
  bool unsaved() const { return state_unsaved_ || !unsaved_reports_.empty(); }
  void TakeChanges(const std::string& base, DurableChanges* changes);
  void SaveAll(const std::string& base, DurableChanges* changes) const;
  // `where` names the record; `record` is what of its key comes behind `base`/, empty of the
  // state's own, which comes first. INVALID_ARGUMENT names record and fault.
  absl::Status RestoreRecord(const std::string& where, absl::string_view record,
                             const std::string& value);
  // `order_json`: of the job's epoch.
  void FinishRestore(int world_size, absl::string_view order_json);

 private:
  struct Evidence {  // of a run in which a rank gave something else than in the one before
    int rank = -1;
    uint64_t first = 0;  // what it had given before
    std::string text;
  };
  using ReportKey = std::pair<int64_t, int>;  // run, rank
  void SaveState(const std::string& base, DurableChanges* changes) const;
  void KeepReport(int rank);
  void DropReports(std::map<int, ExamineReport>* reports, int64_t run);

  RerunRuling Begin(const Places& places);
  // nullopt: nothing more can be learned.
  std::optional<RerunRuling> SendElsewhere(const Places& places);
  std::vector<RankMove> NextPlaces(const Places& places) const;
  void Forget(bool reports);
  RerunRuling Judge(const Places& places);
  RerunRuling Convict(const Places& places, const std::string& head,
                      const std::string& guilty) const;
  static RerunRuling Leave(int exit_code, const std::string& reason);
  static RerunRuling Repeat(const std::string& reason);
  // False: the runs cannot be explained by one worker.
  bool Learn(const Comparison& comparison, const Places& places, int observer);
  std::string LastResort(const Comparison& comparison, const Places& places, int observer) const;
  static std::vector<RunRecord> RunsOf(const std::map<int, ExamineReport>& reports);
  static int ObserverOf(const std::map<int, ExamineReport>& reports);

  static constexpr int kMaxRulings = 3;  // of one step
  static constexpr int kMaxRuns = 4;     // in other places, of one examination

  const bool continue_on_correct_;
  State state_ = State::kIdle;
  int64_t epoch_ = 0;
  int64_t run_ = 0;                       // counts runs that were reported about, for keys
  std::map<int, ExamineReport> reports_;  // by rank: of run `run_`, which is under way
  std::map<int, ExamineReport> first_;    // of the run before it
  int64_t num_first_ = 0;                 // how many those were before a restart
  ExamineOrder rerun_;                    // the machines as they were after the run in place
  int runs_ = 0;                          // in other places
  std::set<std::string> suspects_;
  std::optional<Evidence> evidence_;
  int64_t noted_transient_ = -1;  // iteration
  int64_t ruled_iteration_ = -1;
  int rulings_ = 0;  // about that step
  // It stands for this step, whoever holds it again.
  std::optional<LeaveRuling> left_;

  bool state_unsaved_ = false;
  std::map<ReportKey, std::optional<std::string>> unsaved_reports_;  // nullopt: to be erased
  std::map<ReportKey, size_t> kept_;                                 // bytes of its record
  size_t kept_bytes_ = 0;
};

}  // namespace muster
