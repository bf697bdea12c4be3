// Which rank writes a slice that several ranks hold. Collective.
#pragma once

#include <vector>

#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/comm/communicator.h"

namespace muster {

// Sets NamedTensor::write of every tensor, so that exactly one of the ranks that hold a slice (the
// same name, box and range) writes it; among them the one that has least to write so far, so that
// replicas share the work. Whatever splits the tensors over `ranks` - tensor parallelism, a
// distributed optimizer with one or several instances, whole parameters by owner - needs no rule of
// its own. Slices that overlap without being equal are all written, which the save then refuses.
// A tensor that is no slice (SliceOf) is written here: the save then refuses it on every rank.
// `device` is the communicator's. Errors: those of the collectives.
absl::Status AssignWriters(std::vector<NamedTensor>& tensors, c10::Device device,
                           Communicator& ranks);

}  // namespace muster
