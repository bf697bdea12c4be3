#include "common/control/device_check.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(DeviceCheckTest, SurvivesTheRoundTrip) {
  const DeviceCheck check{.device = "cuda:1",
                          .kind = "Big \"GPU\"",
                          .serial = "GPU-12",
                          .fingerprint = "00ff",
                          .copy_gb_per_s = 10.1,
                          .elapsed_ms = 3.5};
  const std::string line = Encode(check);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto decoded = DecodeDeviceCheck(line);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, check);
}

TEST(DeviceCheckTest, UnknownFieldsAreIgnoredAndWrongOnesNamed) {
  EXPECT_TRUE(DecodeDeviceCheck(R"({"fingerprint":"ab","colour":[1]})").ok());
  EXPECT_TRUE(DecodeDeviceCheck(R"({"error":"no such device"})").ok());
  EXPECT_THAT(std::string(DecodeDeviceCheck(R"({"fingerprint":7})").status().message()),
              HasSubstr("fingerprint has the wrong type"));
  EXPECT_THAT(std::string(DecodeDeviceCheck("{}").status().message()),
              HasSubstr("neither a fingerprint nor an error"));
  EXPECT_FALSE(DecodeDeviceCheck("Segmentation fault").ok());
  EXPECT_FALSE(DecodeDeviceCheck("").ok());
}

}  // namespace
}  // namespace muster
