#include "common/schedule/exit_policy.h"

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

bool Divides(const std::optional<int64_t>& interval, int64_t iteration) {
  return interval.has_value() && *interval > 0 && iteration % *interval == 0;
}

}  // namespace

ExitDecision DecideExit(const ExitOptions& options, const ExitInputs& in) {
  const bool can_save = options.can_save;
  if (in.signal) return {can_save, true, "exit signal"};
  if (!in.checkpoint_and_stop_requested.empty()) {
    return {can_save, true, in.checkpoint_and_stop_requested};
  }
  ExitDecision decision;
  if (can_save && Divides(options.save_interval, in.iteration)) {
    decision = {true, false, absl::StrCat("save_interval ", *options.save_interval)};
  } else if (can_save && !in.checkpoint_requested.empty()) {
    decision = {true, false, in.checkpoint_requested};
  }
  if (!in.stop_requested.empty()) return {decision.save, true, in.stop_requested};
  if (options.exit_duration_in_mins.has_value()) {
    const double limit = *options.exit_duration_in_mins;
    if (in.duration_passed || in.elapsed_mins.value_or(0) > limit) {
      return {can_save, true, absl::StrCat("exit_duration_in_mins ", limit)};
    }
  }
  if (Divides(options.exit_interval, in.iteration)) {
    return {can_save, true, absl::StrCat("exit_interval ", *options.exit_interval)};
  }
  return decision;
}

bool SaveAfterTraining(const ExitOptions& options, int64_t iteration) {
  return options.can_save && iteration != 0 && !Divides(options.save_interval, iteration);
}

}  // namespace muster
