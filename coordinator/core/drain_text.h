// What becomes of the rank on a worker that is drained or in quarantine, for people. Pure.
#pragma once

#include <string>

#include "coordinator/core/job_machine.h"
#include "coordinator/core/membership.h"

namespace muster {

// "rank 1 of job-2 moves to n3/0", "drain waits: no spare and no idle worker for rank 1 (worker
// n2/0); ...". Empty: it need not leave, or does nothing for the job.
std::string DrainText(const JobMachine& job, const Worker& worker);

}  // namespace muster
