// Completion scripts for shells, generated from the command table: what the table does not know, no
// script offers. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/command.h"

namespace muster {

// `shell`: bash, zsh or fish; INVALID_ARGUMENT for another.
absl::StatusOr<std::string> CompletionScript(const std::string& shell,
                                             const std::vector<Command>& commands);

}  // namespace muster
