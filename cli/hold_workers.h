// What drain, cordon and uncordon have in common: they name a worker or a node.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/command.h"

namespace muster {

// Prints what each worker does now (an array with --json), or the error with the nearest name.
int PrintHeldWorkers(const Invocation& invocation, Client* client,
                     const absl::StatusOr<std::vector<v1::WorkerStatus>>& workers);

}  // namespace muster
