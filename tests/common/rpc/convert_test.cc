#include "common/rpc/convert.h"

#include <gtest/gtest.h>

#include <string>

namespace muster {
namespace {

TEST(ConvertTest, EveryCodeComesBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "text");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status) << code;
  }
  EXPECT_TRUE(FromGrpc(ToGrpc(absl::OkStatus())).ok());
}

TEST(ConvertTest, LongMessageIsCutAtTheStartOfACharacter) {
  std::string text;
  while (text.size() < 3 * kMaxStatusMessage) text += "\xE2\x82\xAC";  // the euro sign, 3 bytes
  const std::string cut = ToGrpc(absl::InternalError(text)).error_message();
  EXPECT_LE(cut.size(), kMaxStatusMessage);
  ASSERT_GT(cut.size(), 6u);
  EXPECT_EQ(cut.substr(cut.size() - 3), "...");
  EXPECT_EQ((cut.size() - 3) % 3, 0u);
}

TEST(ConvertTest, DurationsComeBack) {
  for (const absl::Duration d :
       {absl::ZeroDuration(), absl::Nanoseconds(1), absl::Milliseconds(-1500), absl::Hours(100)}) {
    EXPECT_EQ(FromProto(ToProto(d)), d) << d;
  }
  EXPECT_EQ(ToProto(absl::Milliseconds(-1500)).nanos(), -500'000'000);
  EXPECT_EQ(ToProto(absl::InfiniteDuration()).seconds(), 315'576'000'000);
}

TEST(ConvertTest, TimesComeBack) {
  for (const absl::Time t : {absl::FromUnixMillis(1'700'000'000'123), absl::FromUnixMillis(-1)}) {
    EXPECT_EQ(FromProto(ToProto(t)), t) << t;
    EXPECT_GE(ToProto(t).nanos(), 0);
  }
  EXPECT_EQ(ToProto(absl::InfiniteFuture()).seconds(), 253'402'300'799);
}

}  // namespace
}  // namespace muster
