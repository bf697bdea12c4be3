// The other programs of Muster: they are installed beside this one.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// The path of `name` in this program's own folder.
std::string ProgramBeside(absl::string_view name);

}  // namespace muster
