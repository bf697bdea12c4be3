// What a checkpoint keeps of the rerun machines (reference 13.5), as JSON: a part that is the same
// on all ranks, and one a rank. docs/formats.md lists the fields. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/rerun/rerun_machine.h"

namespace muster {

// Of one data iterator. The microbatches themselves are read again from the consumed samples.
struct ReplayState {
  int64_t saved_microbatches = 0;
  bool replaying = false;
  int64_t replay_position = 0;
  bool operator==(const ReplayState&) const = default;
};

std::string EncodeRerunCommon(const RerunCommonState& state);
// `iterators`: none between steps.
std::string EncodeRerunRank(const RerunRankState& state,
                            const std::vector<ReplayState>& iterators = {});
// DATA_LOSS names the field that is missing or wrong.
absl::StatusOr<RerunCommonState> DecodeRerunCommon(absl::string_view json);
absl::StatusOr<RerunRankState> DecodeRerunRank(absl::string_view json);

// The statistics of large values alone, for a process that takes a rank over.
using LargeValues = std::map<std::string, SpikeDetector::Stats>;
std::string EncodeLargeValues(const LargeValues& values);
// Of several ranks: what the largest of them is, and of the one that has seen most.
absl::StatusOr<LargeValues> MergeLargeValues(const std::vector<std::string>& texts);

}  // namespace muster
