// The values of the coordinator's core and of the agent's core into each other: what the wire and
// its conversions do between real processes.
#pragma once

#include <string>

#include "coordinator/core/types.h"
#include "worker/core/agent_messages.h"

namespace muster {

CoordinatorOrder ToOrder(const AgentMessage& message);
ReportBatch ToEvent(const NodeReportBatch& batch, StreamId stream);

// For the trace.
std::string Describe(const AgentMessage& message);
std::string Describe(const ReportBatch& batch);

}  // namespace muster
