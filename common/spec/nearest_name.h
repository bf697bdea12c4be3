// The known name that a mistyped one most likely stands for. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// Insertions, deletions, replacements and swaps of neighbours between two names, case and '-' for
// '_' aside.
int EditDistance(absl::string_view a, absl::string_view b);

// The first of the nearest names, "" when none is near enough to be meant: at most a third of the
// letters may differ (two in a short name).
std::string NearestName(absl::string_view given, const std::vector<std::string>& known);

}  // namespace muster
