// The last line of a command whose job did not end well: the first cause, and what to do. Pure.
#pragma once

#include <string>

#include "muster/v1/job.pb.h"

namespace muster {

// "job-1 failed: rank 1 was killed by signal 9 (worker a/1 on node a)". Precondition: the job has
// ended with another exit code than 0.
std::string DescribeFirstCause(const v1::JobStatus& job);
// The same and what to do next: "...; muster logs job-1 --rank 1 shows its output".
std::string DescribeEnd(const v1::JobStatus& job);

}  // namespace muster
