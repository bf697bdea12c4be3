// After each step: save a checkpoint? leave the loop? why? (reference 12.6, Megatron's
// checkpoint_and_decide_exit, with the directives of design 2.5). Everything that differs between
// ranks comes in agreed, so every rank decides the same. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster {

struct ExitOptions {
  bool can_save = false;                        // checkpoint.save is set
  std::optional<int64_t> save_interval;         // iterations
  std::optional<int64_t> exit_interval;         // iterations
  std::optional<double> exit_duration_in_mins;  // since the job's processes started
};

// All of it agreed over the world at this step's boundary.
struct ExitInputs {
  int64_t iteration = 0;               // after the increment
  bool signal = false;                 // any rank received the exit signal
  std::optional<double> elapsed_mins;  // maximum over ranks; or leave it out and set:
  bool duration_passed = false;        // some rank's clock is past exit_duration_in_mins
  // Directives that became due at this step; the text is their reason, empty: none.
  std::string checkpoint_requested, stop_requested, checkpoint_and_stop_requested;
};

struct ExitDecision {
  bool save = false;
  bool exit = false;
  std::string reason;  // of the exit if there is one, else of the save; empty when neither
  bool operator==(const ExitDecision&) const = default;
};

// In Megatron's order: signal (and the directive that asks for the same), save_interval,
// directives, duration, exit_interval. A stop directive leaves at once and saves only what the
// interval would have saved. Saving needs can_save; leaving does not.
ExitDecision DecideExit(const ExitOptions& options, const ExitInputs& inputs);

// The save between training and the final evaluations (12.1): a last iteration that save_interval
// did not cover.
bool SaveAfterTraining(const ExitOptions& options, int64_t iteration);

}  // namespace muster
