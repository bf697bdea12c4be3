// worker/core's plain values <-> the messages of membership.proto. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "muster/v1/membership.pb.h"
#include "worker/core/agent_messages.h"

namespace muster {

// nullopt for a message of a kind that this version does not know: it is skipped.
std::optional<CoordinatorOrder> ToOrder(const v1::ConnectResponse& response);
v1::TrainerReport ToProto(const NodeReport& report);
v1::ReportBatch ToProto(const NodeReportBatch& batch);
v1::Heartbeat ToProto(int64_t sequence, const std::vector<JobProgress>& progress);

}  // namespace muster
