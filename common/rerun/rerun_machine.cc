#include "common/rerun/rerun_machine.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

constexpr int64_t kStatsInterval = 2;  // iterations between two reports

}  // namespace

absl::string_view RerunModeName(RerunMode mode) {
  switch (mode) {
    case RerunMode::kDisabled:
      return "disabled";
    case RerunMode::kValidateResults:
      return "validate_results";
    case RerunMode::kReportDeterminismStats:
      return "report_determinism_stats";
  }
  return "";
}

absl::StatusOr<RerunMode> ParseRerunMode(absl::string_view name) {
  for (const RerunMode mode :
       {RerunMode::kDisabled, RerunMode::kValidateResults, RerunMode::kReportDeterminismStats}) {
    if (name == RerunModeName(mode)) return mode;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rerun.mode='", name,
                   "': must be one of disabled, validate_results, report_determinism_stats"));
}

void RerunMachine::SetCompleted(int64_t iterations) {
  if (state_ == RerunState::kNotRunningYet || state_ == RerunState::kWillRerunFromCheckpoint)
    current_iteration_ = iterations;
}

bool RerunMachine::needs_flags() const {
  switch (state_) {
    case RerunState::kInitialRun:
      return options_.mode != RerunMode::kDisabled;
    case RerunState::kRerunningInPlace:
      return options_.mode == RerunMode::kValidateResults;
    case RerunState::kRerunningFromCheckpoint:
      return true;
    case RerunState::kNotRunningYet:
    case RerunState::kWillRerunFromCheckpoint:
    case RerunState::kRerunningAgainFromCheckpoint:
      return false;
  }
  return false;
}

absl::StatusOr<RunDecision> RerunMachine::ShouldRun(const RerunFlags& sum) {
  calls_.clear();
  switch (state_) {
    case RerunState::kNotRunningYet:
      flags_ = {};
      failed_call_.reset();
      finding_ = RerunFinding::kNothing;
      initial_results_.clear();
      ++current_iteration_;
      state_ = RerunState::kInitialRun;
      return RunDecision{.run = true, .begin = options_.mode != RerunMode::kDisabled};
    case RerunState::kInitialRun:
      if (options_.mode == RerunMode::kDisabled || sum.rerun == 0) {
        state_ = RerunState::kNotRunningYet;
        return RunDecision{};
      }
      state_ = RerunState::kRerunningInPlace;
      return RunDecision{.run = true, .restore = true};
    case RerunState::kRerunningInPlace:
      if (options_.mode == RerunMode::kReportDeterminismStats) {
        state_ = RerunState::kNotRunningYet;
        return RunDecision{.report_stats = current_iteration_ % kStatsInterval == 0};
      }
      if (sum.keep_going > 0 && !(options_.accept_transient && sum.checkpoint > 0)) {
        state_ = RerunState::kNotRunningYet;
        return RunDecision{};
      }
      if (sum.checkpoint > 0) state_ = RerunState::kWillRerunFromCheckpoint;
      return RunDecision{.restore = true};
    case RerunState::kWillRerunFromCheckpoint:
      ++current_iteration_;
      state_ = RerunState::kRerunningFromCheckpoint;
      return RunDecision{.run = true, .begin = true};
    case RerunState::kRerunningFromCheckpoint:
      if (sum.restart_again > 0) {
        state_ = RerunState::kRerunningAgainFromCheckpoint;
      } else if (sum.keep_going > 0) {
        state_ = RerunState::kNotRunningYet;
      }
      return RunDecision{};
    case RerunState::kRerunningAgainFromCheckpoint:
      break;
  }
  return absl::FailedPreconditionError(
      "a step under examination came back to its suspicious device: the job exits");
}

RerunExit RerunMachine::ExitOf() const {
  if (options_.mode != RerunMode::kValidateResults) return {};
  switch (state_) {
    case RerunState::kNotRunningYet:
    case RerunState::kInitialRun:
      return {};
    case RerunState::kRerunningInPlace:
    case RerunState::kRerunningFromCheckpoint:
      return {.exit = true, .code = kExitFailedOnResultValidation};
    case RerunState::kWillRerunFromCheckpoint:
      return {.checkpoint = true, .exit = true, .code = kExitResumeToDisambiguate};
    case RerunState::kRerunningAgainFromCheckpoint:
      // The checkpoint that the job came from serves again.
      return {.exit = true, .code = kExitResumeToDisambiguate};
  }
  return {};
}

void RerunMachine::Record(RejectionStatus status, double result, const std::string& message) {
  records_.push_back({.node = options_.place.node,
                      .device = options_.place.device,
                      .rank = options_.rank,
                      .iteration = current_iteration_,
                      .status = status,
                      .result = result,
                      .message = message});
}

absl::Status RerunMachine::Validate(const ResultCheck& check) {
  if (options_.mode == RerunMode::kDisabled) {
    if (!check.rejected(check.result)) return absl::OkStatus();
    Record(RejectionStatus::kRerunDisabled, check.result, check.message);
    if (!check.fatal) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("unexpected result ", check.result, " (", check.message, ")"));
  }
  MUSTER_CHECK(state_ != RerunState::kNotRunningYet);
  const ValidationCall call{check.message, options_.rank, calls_[check.message]++};
  if (options_.mode == RerunMode::kReportDeterminismStats) {
    if (state_ == RerunState::kInitialRun) {
      flags_.rerun = 1;
      initial_results_[call] = check.result;
    } else if (auto it = initial_results_.find(call); it != initial_results_.end()) {
      stats_[check.message].Record(RelativeDifference(it->second, check.result));
    }
    return absl::OkStatus();
  }
  if (state_ == RerunState::kInitialRun) {
    ValidateInitialRun(check, call);
    return absl::OkStatus();
  }
  if (!failed_call_.has_value() || call != *failed_call_) return absl::OkStatus();
  last_result_ = check.result;
  rejected_again_ = options_.accept_transient && check.rejected(check.result);
  const double difference =
      injector_.MaybeMiscompare(state_).value_or(RelativeDifference(initial_result_, check.result));
  differs_ = difference > check.tolerance;
  if (state_ == RerunState::kRerunningInPlace) CompareFirstRerun(check);
  if (state_ == RerunState::kRerunningFromCheckpoint) CompareSecondRerun(check);
  return absl::OkStatus();
}

void RerunMachine::ValidateInitialRun(const ResultCheck& check, const ValidationCall& call) {
  if (flags_.rerun != 0 || current_iteration_ <= 1 || current_iteration_ == accepted_) return;
  if (!injector_.MaybeInject(options_.rank) && !check.rejected(check.result)) return;
  failed_call_ = call;
  initial_result_ = last_result_ = check.result;
  flags_.rerun = 1;
  finding_ = RerunFinding::kRejected;
  Record(RejectionStatus::kInitialRun, check.result, check.message);
}

void RerunMachine::CompareFirstRerun(const ResultCheck& check) {
  if (!check.fatal) flags_.keep_going = 1;
  if (differs_) {
    if (options_.accept_transient && !rejected_again_) flags_.keep_going = 1;
    finding_ = RerunFinding::kNotReproducible;
    Record(RejectionStatus::kFirstRerunNotReproducible, check.result, check.message);
    return;
  }
  finding_ = RerunFinding::kReproducible;
  Record(RejectionStatus::kFirstRerunReproducible, check.result, check.message);
  if (check.fatal) flags_.checkpoint = 1;
  suspicious_ = options_.place;
}

void RerunMachine::CompareSecondRerun(const ResultCheck& check) {
  if (options_.place == suspicious_) {
    finding_ = RerunFinding::kSamePlace;
    flags_.restart_again = 1;
    return;
  }
  if (!check.fatal) flags_.keep_going = 1;
  finding_ = differs_ ? RerunFinding::kOtherPlaceDiffers : RerunFinding::kOtherPlaceAgrees;
  Record(differs_ ? RejectionStatus::kSecondRerunNotReproducible
                  : RejectionStatus::kSecondRerunReproducible,
         check.result, check.message);
}

RerunRankState RerunMachine::rank_state() const {
  return {.flags = flags_,
          .injection_rate = injector_.options().rate,
          .injection_type = injector_.options().type,
          .injection_pending = injector_.pending(),
          .failed_call = failed_call_,
          .initial_result = initial_result_,
          .suspicious = suspicious_,
          .large_values = spikes_.stats()};
}

void RerunMachine::Load(const RerunCommonState& common, const std::optional<RerunRankState>& rank) {
  if (options_.mode == RerunMode::kDisabled || common.mode != options_.mode || !rank.has_value())
    return;
  state_ = common.state;
  current_iteration_ = common.current_iteration;
  flags_ = rank->flags;
  injector_.set_pending(rank->injection_pending);
  failed_call_ = rank->failed_call;
  initial_result_ = last_result_ = rank->initial_result;
  suspicious_ = rank->suspicious;
  spikes_.Load(rank->large_values);
}

void RerunMachine::Forget() {
  state_ = RerunState::kNotRunningYet;
  flags_ = {};
  failed_call_.reset();
  finding_ = RerunFinding::kNothing;
  initial_results_.clear();
  injector_.set_pending(std::nullopt);
}

}  // namespace muster
