// What submit and restart share: a spec is checked, sent, and followed if asked.
#pragma once

#include <string>

#include "cli/client.h"
#include "cli/spec_file.h"

namespace muster {

// --set, --watch, --json and how to reach the coordinator.
std::vector<OptionSpec> SubmitOptions();

// `what`: the spec's name in messages (its file); `origin`: added to "submitted JOB". Relative
// paths mean this process's folder. Returns the exit code.
int SubmitSpec(const Invocation& invocation, Client* client, LoadedSpec loaded,
               const std::string& what, const std::string& origin);

}  // namespace muster
