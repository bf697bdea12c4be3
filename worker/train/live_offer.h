// What a member that lived through the last epoch's end says of the state that it holds. Pure.
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "worker/train/attempt_state.h"
#include "worker/train/member_offer.h"

namespace muster {

// What it is to be in the new epoch.
struct MemberPlace {
  int rank = -1;  // -1: a helper
  std::string spec_json;
  c10::Device device = c10::kCPU;
};

// Fills `mine` with all that `kept.state` (not null) is good for; its needs are left as they are.
absl::Status OfferLive(const AttemptState& kept, const MemberPlace& place, MemberText& mine);

}  // namespace muster
