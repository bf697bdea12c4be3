// The rerun machine of this rank inside its training step (reference 13): which results are
// validated, the data to be read again, the flags summed over ranks, what is told to people and to
// the tracker file, and what a checkpoint keeps. One a rank; it stays with the job's state from one
// attempt to the next. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rerun/examination.h"
#include "common/rerun/replay_log.h"
#include "common/rerun/rerun_json.h"
#include "common/rerun/rerun_machine.h"
#include "common/spec/job_spec.h"
#include "worker/comm/communicator.h"
#include "worker/parallel/data_parallel.h"
#include "worker/train/fingerprints.h"
#include "worker/train/forward_backward.h"
#include "worker/train/job_data.h"
#include "worker/train/open_step.h"

namespace muster {

// Of an attempt.
struct StepRerunOptions {
  const JobSpec& spec;
  std::string job_id;  // empty: none
  int rank = 0;
  RerunPlace place;
  // An event for people.
  std::function<void(const std::string& text)> event;
  // ExamineMessage's json, to the coordinator; null: nobody there decides about other hardware.
  std::function<void(int64_t iteration, const std::string& json)> report;
  std::string order_json;  // the assignment's examine_json
  // EncodeLargeValues of the rank that this process goes on as, or of its peers; empty: those of
  // the earlier attempt.
  std::vector<std::string> large_values;
};

class StepRerun {
 public:
  // A machine for the job; statistics of large values are taken over from where the options say, or
  // from an earlier attempt's (or null). A step that was held for an examination is taken up as the
  // order says, else it begins anew. FAILED_PRECONDITION: rerun.result_rejected_tracker_filename
  // cannot be appended to; INVALID_ARGUMENT: the order cannot be read.
  static absl::StatusOr<std::shared_ptr<StepRerun>> Create(const StepRerunOptions& options,
                                                           const StepRerun* earlier);

  RerunMachine& machine() { return machine_; }
  const RerunMachine& machine() const { return machine_; }
  bool enabled() const { return machine_.mode() != RerunMode::kDisabled; }

  // After a run's passes and reductions: the losses of its microbatches, what the provider wants to
  // have checked, the local norms of the gradients. Writes the tracker file. INTERNAL: a fatal
  // rejection with reruns disabled.
  absl::Status Validate(const std::vector<PassResult>& passes, const DataParallel& ddp);
  // All ranks' flags. Collective over `world`; only while something is examined.
  absl::StatusOr<RerunFlags> SumFlags(Communicator& world, c10::Device device) const;
  // For the job's exit: what was found, on every rank the same text, by the lowest rank that
  // followed a rejection. Collective.
  absl::StatusOr<std::string> Describe(Communicator& world, c10::Device device) const;
  // With reruns disabled: the error of a step that some rank has refused, the same on every rank.
  // `mine`: of Validate. Collective.
  absl::Status Refusal(const absl::Status& mine, Communicator& world, c10::Device device) const;
  // The runs' differences since the last report, of all ranks, as one event of rank 0. Collective.
  absl::Status ReportStats(Communicator& world, c10::Device device);

  // For a checkpoint (common/rerun/rerun_json.h). `iterators` as they are left to it: none between
  // steps.
  std::string EncodeRank() const { return EncodeRerunRank(machine_.rank_state(), replays_); }
  void NoteReplays(std::vector<ReplayState> iterators) { replays_ = std::move(iterators); }

  // Does the coordinator find other hardware for a step that repeats its bad result?
  bool elsewhere() const { return options_.report != nullptr; }
  // A run that is compared with one on other hardware: its fingerprints are wanted.
  bool fingerprints_wanted() const;
  FingerprintLog& fingerprints() { return fingerprints_; }
  // Tells the coordinator what this run showed. Every rank does; then they hold the step.
  void Report(ExamineReport::Stage stage);
  // The step that is held, if the directive is to leave with it; nullopt: it is about another one.
  std::optional<RejectedStep> LeavesBy(const Directive& directive) const;

  // The iterations that the tracker file says to skip, the same on every rank. Collective.
  static absl::StatusOr<std::vector<int64_t>> IterationsToSkip(const JobSpec& spec,
                                                               Communicator& world,
                                                               c10::Device device);

 private:
  struct Settings {  // of the spec
    bool check_for_nan = true, check_for_spikes = false;
    std::optional<std::string> tracker;
  };
  StepRerun(const StepRerunOptions& options, const RerunOptions& machine, const Settings& settings);
  absl::Status Follow(const std::string& order_json);
  absl::Status ValidateLoss(double loss);
  absl::Status ValidateProviderChecks(const std::vector<PassResult>& passes);
  absl::Status ValidateGradients(const DataParallel& ddp);
  void WriteTracker();
  std::string Where() const;  // "on rank 3, node-a cuda:0"

  struct Attempt {
    std::string job_id;
    int rank = 0;
    std::function<void(const std::string& text)> event;
    std::function<void(int64_t iteration, const std::string& json)> report;
  };
  Attempt options_;
  int64_t held_iteration_ = 0;  // that was reported about; 0: none is held
  FingerprintLog fingerprints_;
  const Settings settings_;
  RerunMachine machine_;
  std::vector<ReplayState> replays_;
  std::map<std::string, DeterminismStats> all_stats_;  // rank 0: of all ranks, since the start
};

// A step's microbatches, to be read again by its reruns. Borrows the iterators.
class ReplayedData {
 public:
  explicit ReplayedData(const DataIterators& data);
  const DataIterators& iterators() const { return iterators_; }
  void Rewind();
  std::vector<ReplayState> states() const;

 private:
  class Iterator;
  DataIterators iterators_;
};

}  // namespace muster
