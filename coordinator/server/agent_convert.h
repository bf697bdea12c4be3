// The messages of an agent's stream: proto <-> the core's values. Thread-safe: functions of values.
#pragma once

#include "absl/status/statusor.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/types.h"
#include "muster/v1/membership.pb.h"

namespace muster {

// `observed_host`: the caller's address as seen here; used unless it advertises another.
// INVALID_ARGUMENT for a device kind that is not known.
absl::StatusOr<RegisterAgent> FromProto(const v1::RegisterRequest& request,
                                        const std::string& observed_host);
// INVALID_ARGUMENT names the report without a body.
absl::StatusOr<ReportBatch> FromProto(const v1::ReportBatch& batch, StreamId stream);
v1::ConnectResponse ToProto(const AgentMessage& message);
v1::WorkerStatus ToProto(const Worker& worker, const Agent& agent, absl::Time now);

}  // namespace muster
