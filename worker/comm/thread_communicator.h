// Ranks as threads of one process: the tests' backend, for the CPU only (one autograd thread serves
// a CUDA device, so two ranks on it would starve each other).
// Collectives in which the members disagree on operation, type or size end in an error on all of
// them. All groups share the world's fate: an abort or error anywhere frees every rank. After an
// error the contents of tensors whose operation was pending are undefined.
// Thread-safety: as in communicator.h; each rank's communicator belongs to that rank's thread.
#pragma once

#include <vector>

#include "worker/comm/communicator.h"
#include "worker/comm/thread_group.h"

namespace muster {

// One communicator a rank, in rank order. Give each to its own thread.
std::vector<CommunicatorPtr> MakeThreadWorld(int size, ThreadWorldOptions options = {});

}  // namespace muster
