// A group whose members share memory, as a Communicator.
//
// - Sums add in rank order with one rounding a step, in the tensors' own type: all-reduce and
//   reduce-scatter give the bits of the threads backend. (Gloo's all-reduce adds in its ring's
//   order, which is the same for two ranks.)
// - Members that issue different operations get INVALID_ARGUMENT, as do mismatched sends.
// - Once a Wait has failed, nothing reads or writes its tensors any more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/comm/shm_engine.h"

namespace muster {

// `node_ranks`: each global rank's place on the node; all of `ranks` have one. `rank`: in the
// group.
CommunicatorPtr MakeShmCommunicator(std::string name, std::vector<int> ranks, int rank,
                                    std::vector<int> node_ranks, std::shared_ptr<ShmEngine> engine);

}  // namespace muster
