#include "common/rpc/convert.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr int64_t kMaxProtoSeconds = 315'576'000'000;  // google/protobuf/duration.proto
const absl::Time kProtoMin = absl::FromUnixSeconds(-62'135'596'800);  // 0001-01-01
const absl::Time kProtoMax = absl::FromUnixSeconds(253'402'300'799);  // 9999-12-31

std::string CutMessage(absl::string_view message) {
  if (message.size() <= kMaxStatusMessage) return std::string(message);
  size_t end = kMaxStatusMessage - 3;
  // A UTF-8 continuation byte is 10xxxxxx: go back to the start of its character.
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(message.substr(0, end), "...");
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // The numbers of both enums are those of google.rpc.Code.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), CutMessage(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  duration =
      std::clamp(duration, -absl::Seconds(kMaxProtoSeconds), absl::Seconds(kMaxProtoSeconds));
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

google::protobuf::Timestamp ToProto(absl::Time time) {
  time = std::clamp(time, kProtoMin, kProtoMax);
  const int64_t seconds = absl::ToUnixSeconds(time);  // rounds down, so nanos are not negative
  google::protobuf::Timestamp proto;
  proto.set_seconds(seconds);
  proto.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
  return proto;
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

absl::Time FromProto(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

}  // namespace muster
