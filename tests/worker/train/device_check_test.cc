#include "worker/train/device_check.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

TEST(DeviceCheckTest, ACpuIsSoundAndSaysTheSameTwice) {
  const DeviceCheck first = CheckDevice("cpu", IdentifyCpu());
  EXPECT_EQ(first.error, "");
  EXPECT_EQ(first.fingerprint.size(), 16u);
  EXPECT_NE(first.kind, "");
  EXPECT_GT(first.copy_gb_per_s, 0.05);
  EXPECT_EQ(CheckDevice("cpu", IdentifyCpu()).fingerprint, first.fingerprint);
}

TEST(DeviceCheckTest, ADeviceThatIsNotThereIsAnErrorWithoutAFingerprint) {
  for (const char* device : {"cuda:63", "no such thing"}) {
    const DeviceCheck check = CheckDevice(device, {});
    EXPECT_NE(check.error, "") << device;
    EXPECT_EQ(check.error.find('\n'), std::string::npos) << check.error;
    EXPECT_EQ(check.fingerprint, "") << device;
  }
}

TEST(DeviceCheckTest, ACpusNameIsRead) {
  EXPECT_EQ(CpuModelName("processor\t: 0\nmodel\t\t: 1\nmodel name\t: Fast CPU @ 3 GHz: x\n"),
            "Fast CPU @ 3 GHz: x");
  EXPECT_EQ(CpuModelName("processor\t: 0\nCPU part\t: 0xd0c\n"), "0xd0c");
  EXPECT_EQ(CpuModelName(""), "CPU");
}

}  // namespace
}  // namespace muster
