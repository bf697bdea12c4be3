// How many rows the experts of a rank get of one microbatch, if routing is even: every expert is
// chosen as often as any other. Pure.
#pragma once

#include "common/spec/job_spec.h"

namespace muster {

struct ExpertRows {
  double tokens = 0;         // of the rank, at the router
  double sent = 0;           // copies of them, one for each of a token's experts, after dropping
  double received = 0;       // what the experts of the rank compute
  double local_experts = 0;  // of the rank
  double ranks = 1;          // that exchange rows: ep x etp
  double ep = 1, etp = 1;
};

// Zeros without experts.
ExpertRows ExpertRowsOf(const JobSpec& spec);

}  // namespace muster
