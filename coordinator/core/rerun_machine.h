// The arbiter of a job's reruns (design 3): a step whose bad result repeats in place is run once
// more with ranks on other workers, and the two runs are compared. Pure; not durable: after a
// restart of the coordinator a held step begins anew, and is examined anew.
//
//   kIdle -1-> kInPlace -2-> kElsewhere -3-> kIdle
//   1 ranks report that they hold a step; all of them yield.
//   2 there are other places for those that may be to blame: the epoch is raised with them, and an
//     order to run the step again. Else the job is ordered to leave with 16.
//   3 ranks report that run; the verdict, or 2 again while more than one worker is suspected.
//
// Who may be to blame for a bad loss or gradient is one of the ranks of the model replica that saw
// it, so these change places: in a cycle, the last one onto a spare where there is one. Where the
// new places give a good result, the worker is known at once; else the fault came along, and each
// comparison leaves the two workers that had the convicted rank: they go on to other places, until
// only one worker explains all runs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rerun/examination.h"
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

// What is to be done with a step that all ranks hold.
struct RerunRuling {
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
    std::vector<int> replicas;         // by rank: its data-parallel coordinate
    std::vector<std::string> spares;   // of the job, good ones
  };
  // All ranks have yielded.
  RerunRuling Rule(const Places& places);
  // The epoch has ended otherwise.
  void Forget();

 private:
  RerunRuling SendElsewhere(const Places& places);
  static std::vector<int> Movers(const Places& places, int observer);
  bool MoreCanBeLearned(const Places& places) const;
  void Forget(bool reports);
  RerunRuling Judge(const Places& places);
  RerunRuling Leave(int exit_code, const std::string& reason);
  RerunRuling Repeat(const std::string& reason);
  std::optional<Difference> Guilty(const Comparison& comparison, int observer,
                                   const ExamineReport& observed, std::string* worker);
  std::vector<RunRecord> RunsOf(const std::map<int, ExamineReport>& reports) const;
  static int ObserverOf(const std::map<int, ExamineReport>& reports);  // -1: none

  static constexpr int kMaxRulings = 3;  // of one step
  static constexpr int kMaxRuns = 4;     // in other places, of one examination

  const bool continue_on_correct_;
  State state_ = State::kIdle;
  int64_t epoch_ = 0;
  std::map<int, ExamineReport> reports_;  // by rank: of the stage that is under way
  std::map<int, ExamineReport> first_;    // of the run before it
  ExamineOrder rerun_;                    // the machines as they were after the run in place
  int runs_ = 0;                          // in other places
  std::optional<std::set<std::string>> suspects_;
  int64_t noted_transient_ = -1;  // iteration
  int64_t ruled_iteration_ = -1;
  int rulings_ = 0;  // about that step
};

}  // namespace muster
