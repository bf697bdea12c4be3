// The JSON parts of a job's checkpoint: what is not a tensor. docs/formats.md lists the fields.
// Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/schedule/loss_scaler.h"
#include "common/schedule/lr_schedule.h"
#include "worker/optim/optimizer.h"
#include "worker/train/job_state.h"

namespace muster {

struct CommonCheckpointState {
  std::string spec_json;
  Progress progress;
  std::optional<LrScheduleState> lr_schedule;
  std::optional<LossScalerState> loss_scaler;
  std::vector<OptimizerGroupState> optimizer_groups;
  std::string rerun_json;  // common/rerun/rerun_json.h; empty: none
};

std::string EncodeCommonState(const CommonCheckpointState& state);
// DATA_LOSS names the field that is missing or wrong.
absl::StatusOr<CommonCheckpointState> DecodeCommonState(const std::string& json);

// A rank's part. RNG regions: name -> opaque bytes. `rerun_json`: as above.
std::string EncodeRngState(const std::map<std::string, std::string>& regions,
                           const std::string& rerun_json = "");
absl::StatusOr<std::map<std::string, std::string>> DecodeRngState(const std::string& json);
absl::StatusOr<std::string> DecodeRankRerun(const std::string& json);  // empty: none

}  // namespace muster
