// A group of one member: every operation copies inputs to outputs and is done at once. On any
// device.
#pragma once

#include <string>

#include "worker/comm/communicator.h"

namespace muster {

CommunicatorPtr MakeSelfCommunicator(std::string name, int global_rank);

}  // namespace muster
