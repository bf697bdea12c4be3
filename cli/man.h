// Manual pages in roff, from the command table. Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace muster {

// muster(1): all commands, exit codes, environment, files.
std::string ManPage(const std::vector<Command>& commands);
// Of one command: "muster-submit(1)".
std::string ManPage(const Command& command, const std::vector<Command>& commands);

// "muster-ckpt-verify": of the page of "ckpt verify". With ".1" it is the file's name.
std::string ManPageName(const Command& command);

}  // namespace muster
