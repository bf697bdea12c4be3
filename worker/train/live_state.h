// A job's state in memory as members of a new epoch give it to each other, and as snapshots keep
// it: slices of the job's tensors, and small texts by key. One thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/train/job_state.h"

namespace muster {

inline constexpr char kCommonText[] = "common";
// JobState::consumed_valid_at_commit: the same for all, whether they were asked before or after the
// evaluation of that step, which kCommonText is not.
inline constexpr char kValidAtCommitText[] = "consumed_valid_at_commit";

// What this rank updates: its part of the weights and of the optimizer's state.
std::vector<NamedTensor> LiveTensors(const JobState& state);
// The common state of checkpoints, and this rank's random states under RngTextKey. Equal texts on
// all ranks that give one key. The last committed step under StepTextKey.
std::map<std::string, std::string> LiveTexts(const JobState& state);
// Of the last committed step (member_offer.h); empty: none is known. "step.pp1": losses are known
// to the last stage only.
std::string StepTextKey(const JobState& state);
// Of the steps before it that the last stage remembers, a message a line (JobState::recent_steps).
std::string RecentStepsTextKey(const JobState& state);
// Of the random states that belong to this rank's place in the model: "rng.pp0.tp1". Empty when
// `spec`'s layout has other places.
std::string RngTextKey(const JobState& state);

// Of what the rerun machine of the rank with this place in the model, and this one among its
// data-parallel peers, has seen so far: "large_values.pp1.tp0.cp0.dp3".
std::string LargeValuesTextKey(const JobState& state, int dp);

// After LiveTensors were written and with the texts of whoever gave them: groups, schedule, scaler,
// progress, last step, random states (where a text of them is there). Parameters that others update
// must be gathered then.
absl::Status FinishFill(JobState& state, const std::map<std::string, std::string>& texts);

}  // namespace muster
