// absl::Status, Time and Duration <-> gRPC and proto. The only place where they are converted.
// Thread-safe: functions of values.
#pragma once

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace muster {

// A status travels in HTTP/2 trailers, which hold 8 KiB in all and escape a byte as three: a longer
// message is cut (at a character's start) and ends in "...". Long reports belong in a response.
inline constexpr size_t kMaxStatusMessage = 2048;  // bytes

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// Beyond what a proto can hold (10,000 years): the nearest that it can.
google::protobuf::Duration ToProto(absl::Duration duration);
google::protobuf::Timestamp ToProto(absl::Time time);
absl::Duration FromProto(const google::protobuf::Duration& duration);
absl::Time FromProto(const google::protobuf::Timestamp& time);

}  // namespace muster
