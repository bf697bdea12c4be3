#include "worker/train/live_state.h"

#include <deque>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/control/messages.h"
#include "worker/train/checkpoint_json.h"
#include "worker/train/job_tensors.h"
#include "worker/train/member_offer.h"
#include "worker/train/step_rerun.h"

namespace muster {

std::vector<NamedTensor> LiveTensors(const JobState& state) {
  std::vector<NamedTensor> tensors = OwnedModelTensors(state);
  for (NamedTensor& tensor : OptimizerTensors(state, TensorUse::kLoad))
    tensors.push_back(std::move(tensor));
  return tensors;
}

std::string RngTextKey(const JobState& state) {
  const RankCoordinates& where = state.parallel.coordinates();
  std::string key = absl::StrCat("rng.pp", where.pp, ".tp", where.tp);
  // A generator of its own for each place among the experts.
  if (state.spec.model.num_experts.has_value())
    absl::StrAppend(&key, ".ep", where.ep, ".etp", where.expert_tp);
  if (state.spec.training.data_parallel_random_init) absl::StrAppend(&key, ".dp", where.dp);
  return key;
}

std::string StepTextKey(const JobState& state) {
  return absl::StrCat("step.pp", state.parallel.coordinates().pp);
}

std::string RecentStepsTextKey(const JobState& state) {
  return absl::StrCat("steps.pp", state.parallel.coordinates().pp);
}

std::string LargeValuesTextKey(const JobState& state, int dp) {
  const RankCoordinates& where = state.parallel.coordinates();
  return absl::StrCat("large_values.pp", where.pp, ".tp", where.tp, ".cp", where.cp, ".dp", dp);
}

namespace {

// A message ends in its own newline.
std::string EncodeRecentSteps(const std::deque<StepMessage>& steps) {
  std::string text;
  for (const StepMessage& step : steps) absl::StrAppend(&text, Encode(TrainerToAgent(step)));
  return text;
}

absl::StatusOr<std::deque<StepMessage>> DecodeRecentSteps(const std::string& text) {
  std::deque<StepMessage> steps;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    ASSIGN_OR_RETURN(const TrainerToAgent message, DecodeTrainerToAgent(line));
    const auto* step = std::get_if<StepMessage>(&message);
    if (step == nullptr) return absl::DataLossError("a report of a step is something else");
    steps.push_back(*step);
  }
  return steps;
}

}  // namespace

std::map<std::string, std::string> LiveTexts(const JobState& state) {
  // Without the spec: that of the epoch before may have had another number of replicas.
  const CommonCheckpointState common{.progress = state.progress,
                                     .lr_schedule = state.lr_schedule->State(),
                                     .loss_scaler = state.loss_scaler->state(),
                                     .optimizer_groups = state.optimizer->GroupStates()};
  // A state that was loaded, or has skipped iterations since, knows of none.
  const bool knows_step =
      state.last_step.has_value() && state.agreed.iteration == state.progress.iteration;
  std::map<std::string, std::string> texts = {
      {kCommonText, EncodeCommonState(common)},
      {kValidAtCommitText, absl::StrCat(state.consumed_valid_at_commit)},
      {StepTextKey(state), knows_step ? EncodeStepResult(*state.last_step) : ""},
      {RecentStepsTextKey(state), EncodeRecentSteps(state.recent_steps)},
      {RngTextKey(state), EncodeRngState(state.rng.SaveState())}};
  if (state.rerun != nullptr && !state.rerun->machine().spikes().stats().empty()) {
    texts[LargeValuesTextKey(state, state.parallel.coordinates().dp)] =
        EncodeLargeValues(state.rerun->machine().spikes().stats());
  }
  return texts;
}

absl::Status FinishFill(JobState& state, const std::map<std::string, std::string>& texts) {
  ASSIGN_OR_RETURN(const CommonCheckpointState common, DecodeCommonState(texts.at(kCommonText)));
  if (!common.lr_schedule.has_value() || !common.loss_scaler.has_value())
    return absl::DataLossError("a state from memory without its schedule or loss scale");
  RETURN_IF_ERROR(state.optimizer->LoadGroupStates(common.optimizer_groups));
  state.optimizer->MainParamsLoaded();
  RETURN_IF_ERROR(
      state.lr_schedule->Load(*common.lr_schedule, common.progress.consumed_train_samples));
  ApplySchedule(*state.lr_schedule, *state.optimizer);
  state.loss_scaler->Load(*common.loss_scaler);
  state.progress = common.progress;
  if (!absl::SimpleAtoi(texts.at(kValidAtCommitText), &state.consumed_valid_at_commit))
    return absl::DataLossError("a state from memory without its evaluation samples");
  state.last_step.reset();
  if (const auto step = texts.find(StepTextKey(state)); step != texts.end() && step->second != "") {
    ASSIGN_OR_RETURN(state.last_step, DecodeStepResult(step->second));
  }
  state.recent_steps.clear();
  if (const auto steps = texts.find(RecentStepsTextKey(state)); steps != texts.end()) {
    ASSIGN_OR_RETURN(state.recent_steps, DecodeRecentSteps(steps->second));
  }
  const auto rng = texts.find(RngTextKey(state));
  if (rng == texts.end()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto regions, DecodeRngState(rng->second));
  return state.rng.LoadState(regions);
}

}  // namespace muster
