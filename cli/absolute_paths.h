// A spec's relative paths mean the folder of whoever wrote the command; the agents that read them
// work in others.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "cli/spec_file.h"

namespace muster {

// Puts `folder` (absolute) before every relative path of the spec, in its text and in its values;
// nothing else of the text changes. Pure. Precondition: the spec has no problems.
absl::Status MakePathsAbsolute(const std::string& folder, LoadedSpec* loaded);

// The same with this process's working folder.
absl::Status MakePathsAbsolute(LoadedSpec* loaded);

}  // namespace muster
