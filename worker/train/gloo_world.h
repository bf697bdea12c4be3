// The world of an assignment on CPUs: shared memory inside a node (unless the spec says otherwise),
// gloo between nodes.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/train/session.h"

namespace muster {

// Gloo needs no ID of its own; a random name keeps the keys of two attempts apart all the same.
std::string MakeGlooUniqueId();
absl::StatusOr<CommunicatorPtr> FormGlooWorldOf(const FormWorldOptions& options);

}  // namespace muster
