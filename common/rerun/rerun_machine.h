// Is a bad result the hardware's fault, or is it right? A step whose result was rejected is run
// again: in place, then from a checkpoint on other hardware (reference 13.1, 13.2). One machine a
// rank; they agree by summing their flags over all ranks, so that any rank decides for all. Pure.
//
//   kNotRunningYet -1-> kInitialRun -2-> kNotRunningYet
//                       kInitialRun -3-> kRerunningInPlace -4-> kNotRunningYet
//                                        kRerunningInPlace -5-> kWillRerunFromCheckpoint
//   kWillRerunFromCheckpoint -6-> kRerunningFromCheckpoint -7-> kRerunningAgainFromCheckpoint
//                                 kRerunningFromCheckpoint -8-> kNotRunningYet
//   1 a step begins.   2 no result was rejected, or reruns are disabled.
//   3 a result was rejected somewhere: the same data and random numbers once more.
//   4 a rejection is not fatal: its rerun's gradients count; or the mode only measures.
//   5 the result repeats, and it is fatal: on a checkpoint of the step's beginning, and away.
//   6 from that checkpoint, wherever.   7 the same device again: away once more.
//   8 a rejection that is not fatal.
// A rerun that ends in none of these stays where it is and leaves with 17 (ExitOf).
//
// With accept_transient (other hardware is at hand, so that nobody has to leave for it) a fatal
// result that was rejected at first and is none the second time counts as one that is not fatal;
// and of two ranks that disagree, the one that wants to look elsewhere wins.
//
// A run: ShouldRun says run, passes, Validate for every result, ShouldRun says no more, ExitOf.
// Invariants: of one rank and step only the first rejected call is followed; its rerun is compared
// at the same call (message and how often it was made in this run).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rerun/determinism_stats.h"
#include "common/rerun/error_injector.h"
#include "common/rerun/result_check.h"
#include "common/rerun/tracker_file.h"

namespace muster {

enum class RerunMode { kDisabled, kValidateResults, kReportDeterminismStats };
absl::string_view RerunModeName(RerunMode mode);  // as in the spec
absl::StatusOr<RerunMode> ParseRerunMode(absl::string_view name);

enum class RerunState {  // Megatron's numbers
  kNotRunningYet = 0,
  kInitialRun = 1,
  kRerunningInPlace = 2,
  kWillRerunFromCheckpoint = 3,
  kRerunningFromCheckpoint = 4,
  kRerunningAgainFromCheckpoint = 5,
};

// Exit codes of a job.
inline constexpr int kExitResumeToDisambiguate = 16;
inline constexpr int kExitFailedOnResultValidation = 17;

// Where a rank computes. Equal places are the same hardware.
struct RerunPlace {
  std::string node, device;
  bool operator==(const RerunPlace&) const = default;
};

// One rank's wishes (0 or 1 each), or their sum over ranks.
struct RerunFlags {
  int64_t rerun = 0, checkpoint = 0, restart_again = 0, keep_going = 0;
  std::array<int64_t, 4> ToArray() const { return {rerun, checkpoint, restart_again, keep_going}; }
  static RerunFlags FromArray(const std::array<int64_t, 4>& a) { return {a[0], a[1], a[2], a[3]}; }
  bool operator==(const RerunFlags&) const = default;
};

// One call of Validate within a run.
struct ValidationCall {
  std::string message;
  int rank = 0;
  int64_t sequence = 0;  // earlier calls of this run with this message
  auto operator<=>(const ValidationCall&) const = default;
};

struct ResultCheck {
  std::string message;  // "found NaN in local forward loss calculation"
  double result = 0;
  std::function<bool(double)> rejected;  // asked only where it matters
  double tolerance = 0;                  // of RelativeDifference, between two runs
  bool fatal = true;
};

// What the caller has to do around the run that comes, or comes no more.
struct RunDecision {
  bool run = false;
  bool begin = false;    // keep the random states of now; the data before is done with
  bool restore = false;  // random states and data of the step's beginning come back
  bool report_stats = false;
};

struct RerunExit {
  bool checkpoint = false, exit = false;
  int code = 0;
  bool operator==(const RerunExit&) const = default;
};

// What was found out about the step, for people and for the coordinator.
enum class RerunFinding {
  kNothing,
  kRejected,           // initial run; a rerun is to come
  kNotReproducible,    // first rerun: transient
  kReproducible,       // first rerun
  kSamePlace,          // second rerun, on the suspicious device: it proves nothing
  kOtherPlaceDiffers,  // second rerun: the first device computes wrongly
  kOtherPlaceAgrees,   // second rerun: the result is right, whatever it is
};

struct RerunOptions {
  RerunMode mode = RerunMode::kValidateResults;
  int rank = 0;
  RerunPlace place;
  ErrorInjectorOptions injector;
  int64_t spike_samples = 100;
  bool accept_transient = false;
};

// What a checkpoint keeps of a rank (reference 13.5).
struct RerunRankState {
  RerunFlags flags;
  int64_t injection_rate = 0;
  InjectedError injection_type = InjectedError::kTransient;
  std::optional<InjectedError> injection_pending;
  std::optional<ValidationCall> failed_call;
  double initial_result = 0;
  RerunPlace suspicious;
  std::map<std::string, SpikeDetector::Stats> large_values;
};
struct RerunCommonState {
  RerunMode mode = RerunMode::kValidateResults;
  RerunState state = RerunState::kNotRunningYet;
  int64_t current_iteration = 0;
};

class RerunMachine {
 public:
  explicit RerunMachine(const RerunOptions& options)
      : options_(options), injector_(options.injector), spikes_(options.spike_samples) {}

  // Before a step: so many are completed. Of no effect while one is being examined.
  void SetCompleted(int64_t iterations);
  // `sum`: of all ranks' flags; looked at only where needs_flags(). FAILED_PRECONDITION in
  // kRerunningAgainFromCheckpoint, which only an exit follows.
  absl::StatusOr<RunDecision> ShouldRun(const RerunFlags& sum);
  bool needs_flags() const;
  const RerunFlags& flags() const { return flags_; }

  // In a run. INTERNAL for a fatal rejection with reruns disabled. The first step of a job is not
  // looked at. (Megatron: the first of every process; here a process that takes another's place
  // goes on as that one would have.)
  absl::Status Validate(const ResultCheck& check);
  // For `rejected`: see SpikeDetector. Asked as often as Megatron asks, it has the same statistics.
  bool IsUnexpectedlyLarge(double value, double factor, const std::string& context) {
    return spikes_.IsUnexpectedlyLarge(value, factor, context);
  }

  RerunExit ExitOf() const;

  // What this rank has found since the last call, for the tracker file; job_id is left out.
  std::vector<RejectionRecord> TakeRecords() { return std::exchange(records_, {}); }
  RerunFinding finding() const { return finding_; }        // of this rank, about the step at hand
  double last_result() const { return last_result_; }      // of the followed call, newest run
  bool rejected_again() const { return rejected_again_; }  // the same; with accept_transient
  bool differs() const { return differs_; }                // it, from the initial result
  double initial_result() const { return initial_result_; }
  const std::optional<ValidationCall>& failed_call() const { return failed_call_; }

  // Since the last call, by message; in kReportDeterminismStats.
  std::map<std::string, DeterminismStats> TakeStats() { return std::exchange(stats_, {}); }

  RerunState state() const { return state_; }
  RerunMode mode() const { return options_.mode; }
  const RerunPlace& place() const { return options_.place; }
  int64_t current_iteration() const { return current_iteration_; }
  const SpikeDetector& spikes() const { return spikes_; }

  RerunCommonState common() const { return {options_.mode, state_, current_iteration_}; }
  RerunRankState rank_state() const;
  // Goes on with an examination that a checkpoint holds. Without `rank` (another layout) or in
  // another mode only a fresh start is possible: nothing is taken over.
  void Load(const RerunCommonState& common, const std::optional<RerunRankState>& rank);
  // Ends an examination without its second rerun: the step begins anew.
  void Forget();
  // Whatever this iteration gives is right.
  void Accept(int64_t iteration) { accepted_ = iteration; }

 private:
  void Record(RejectionStatus status, double result, const std::string& message);
  void ValidateInitialRun(const ResultCheck& check, const ValidationCall& call);
  void CompareFirstRerun(const ResultCheck& check);
  void CompareSecondRerun(const ResultCheck& check);

  RerunOptions options_;
  ErrorInjector injector_;
  SpikeDetector spikes_;
  RerunState state_ = RerunState::kNotRunningYet;
  int64_t current_iteration_ = 0;  // the one being run, from 1 on; else the completed ones
  RerunFlags flags_;
  std::optional<ValidationCall> failed_call_;
  double initial_result_ = 0, last_result_ = 0;
  bool rejected_again_ = false, differs_ = false;
  int64_t accepted_ = -1;  // iteration
  RerunPlace suspicious_;
  RerunFinding finding_ = RerunFinding::kNothing;
  std::map<std::string, int64_t> calls_;              // of this run, by message
  std::map<ValidationCall, double> initial_results_;  // kReportDeterminismStats: of this step
  std::map<std::string, DeterminismStats> stats_;
  std::vector<RejectionRecord> records_;
};

}  // namespace muster
