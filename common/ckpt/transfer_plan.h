// Who gives which elements to whom, when some members of a group hold slices of tensors and some
// want slices of them: behind the recovery of a lost rank's state and elastic resizing. Pure.
//
// Invariants of a plan: every wanted element is the target of exactly one run (but for rows beyond
// the offered ones, where allow_dim0_padding), and the source element is the same one of the
// tensor. A member is filled from its own offers first, in their order; else equal slices are given
// by the member that has the least to give so far. The same input gives the same plan on every
// member.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ckpt/manifest.h"
#include "common/ckpt/safetensors.h"

namespace muster {

struct TransferSlice {
  std::string tensor;
  DType dtype = DType::kF32;
  std::vector<int64_t> global_shape;
  SliceBox box;
  bool allow_dim0_padding = false;  // wants only
};

// `count` elements that follow each other in both: from element `source` of the offer's data to
// element `target` of the want's.
struct TransferRun {
  int from = 0, offer = 0;  // member, index in its offers
  int to = 0, want = 0;     // member, index in its wants
  int64_t source = 0, target = 0, count = 0;
  bool operator==(const TransferRun&) const = default;
};

// `offers[m]`, `wants[m]`: of member m. Runs ascend by (to, want, target).
// FAILED_PRECONDITION names the tensor, who wants it, and the elements that nobody offers, or the
// global shapes that differ.
absl::StatusOr<std::vector<TransferRun>> PlanTransfer(
    const std::vector<std::vector<TransferSlice>>& offers,
    const std::vector<std::vector<TransferSlice>>& wants);

}  // namespace muster
