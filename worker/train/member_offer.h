// What a member of a new epoch says of itself in the first exchange: the offer that the restore is
// decided from (common/recovery/restore_plan.h), and what it knows of its last step beyond it.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/recovery/restore_plan.h"
#include "worker/train/attempt_state.h"

namespace muster {

struct MemberText {
  MemberOffer offer;
  // It trained with the same spec as the same rank: its state needs new groups only.
  bool rebinds = false;
  bool reported = false;  // it spoke for the job
  int64_t boundary_done = -1;
  int64_t applied_through = 0;  // directives, by the step of its live state
  // Of that step, when it was committed there; with the directives that it acts on.
  std::optional<TrainStepResult> step;
  // Of the step that it has prepared, as far as it is known before the agreement.
  std::optional<TrainStepResult> prepared_step;
  std::vector<Directive> held;  // without a gap after `applied_through`
};

// A committed step as it is reported, and acted on at its boundary; without params_norm, which a
// rank computes anew.
std::string EncodeStepResult(const TrainStepResult& step);
absl::StatusOr<TrainStepResult> DecodeStepResult(absl::string_view text);

std::string EncodeMember(const MemberText& member);
absl::StatusOr<MemberText> DecodeMember(absl::string_view text);

}  // namespace muster
