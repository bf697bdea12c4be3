// A layer's places in the groups that are not tensor parallelism (mappings.h has that one). A group
// of one is a null communicator. Borrowed.
#pragma once

#include "worker/comm/communicator.h"

namespace muster {

// The sequence is cut in 2 size chunks; rank r holds chunks r and 2 size - 1 - r, in that order
// (reference 14.3). Activations have seq / size tokens a sample.
struct ContextParallel {
  Communicator* comm = nullptr;
  int rank = 0, size = 1;
  // With two hierarchical sizes: the group of the all-to-all, and that of the ring over it.
  Communicator* a2a = nullptr;
  Communicator* p2p = nullptr;
};

// Where experts live and their tokens travel (reference 14.5). "tp" here is the experts' own.
struct ExpertParallel {
  Communicator* ep = nullptr;     // rank e holds experts [e E / size, (e + 1) E / size)
  Communicator* etp = nullptr;    // expert tensor parallelism
  Communicator* tp_ep = nullptr;  // both: the all-gather dispatcher
  int ep_rank = 0, ep_size = 1;
  int etp_rank = 0, etp_size = 1;
  // Their gradients have a group of their own (Parameter::allreduce is false): ep > 1, or expert tp
  // differs from tp.
  bool own_gradient_group = false;
  // Of the side losses' counts: tokens of one sequence, and of the step's whole batch.
  Communicator* tp_cp = nullptr;
  Communicator* tp_dp_cp = nullptr;
};

}  // namespace muster
