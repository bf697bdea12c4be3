// A job as the core holds it -> proto. Called on the engine's thread.
#pragma once

#include "coordinator/core/job_machine.h"
#include "coordinator/core/membership.h"
#include "muster/v1/job.pb.h"
#include "muster/v1/training.pb.h"

namespace muster {

enum class JobDetail { kSummary, kFull };  // summary: without results, waits and log lines

// `signs`: Coordinator::Signs(), for who is missing.
v1::JobStatus ToProto(const JobMachine& job, JobDetail detail, const SignsOfLife& signs);
v1::MetricsRecord ToProto(const Ring<StepRecord>::Entry& entry);
v1::Event ToProto(const Ring<JobEvent>::Entry& entry);
v1::LogLine ToProto(const JobHistory::LogEntry& entry);
// Its workers that get no new rank, and all of its kind in quarantine; at most a few.
void FillHeldBack(const JobMachine& job, const Membership& members, v1::JobStatus* proto);
void FillTopology(const JobMachine& job, v1::GetTopologyResponse* response);

}  // namespace muster
