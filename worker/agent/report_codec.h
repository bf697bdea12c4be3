// One trainer's report as bytes and back (the message of membership.proto): what the spill's files
// hold. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "worker/core/agent_messages.h"

namespace muster {

std::string EncodeReport(const NodeReport& report);
// nullopt for bytes that are no report.
std::optional<NodeReport> DecodeReport(absl::string_view bytes);

}  // namespace muster
