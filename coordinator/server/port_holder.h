// Who listens on a port of this machine, for an error message.
#pragma once

#include <string>

namespace muster {

// "the port is taken by process 123 (muster-coordina)"; less when it cannot be seen from here.
std::string DescribePortHolder(int port);

}  // namespace muster
