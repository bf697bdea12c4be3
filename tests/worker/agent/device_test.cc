#include "worker/agent/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

TEST(DeviceTest, FlagsAndWhatTheyMean) {
  struct Row {
    const char* flag;
    int slots;
    int cuda_devices;
    const char* expected;  // the devices, or the error's beginning
  };
  const Row rows[] = {
      {"cpu", 1, 0, "cpu#0"},
      {"cpu", 3, 8, "cpu#0 cpu#1 cpu#2"},
      {"cpu", 0, 0, "--slots=0: must be 1 to 1024"},
      {"cuda:all", 1, 2, "cuda:0#0 cuda:1#1"},
      {"cuda:all", 1, 0, "--device=cuda:all: this machine shows no NVIDIA device"},
      {"cuda:3", 1, 0, "cuda:3#3"},
      {"cuda:0,cuda:2", 1, 4, "cuda:0#0 cuda:2#2"},
      {"cuda:0,2", 1, 4, "cuda:0#0 cuda:2#2"},
      {"cuda:0,cuda:0", 1, 4, "--device=cuda:0,cuda:0: cuda:0 is named twice"},
      {"cuda:0", 2, 4, "--slots=2: only --device cpu has slots"},
      {"cuda:x", 1, 4, "--device=cuda:x: must be cpu"},
      {"gpu", 1, 4, "--device=gpu: must be cpu"},
      {"0,1", 1, 4, "--device=0,1: must be cpu"},
      {"", 1, 4, "--device=: must be cpu"},
      {"cuda:-1", 1, 4, "--device=cuda:-1: must be cpu"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat(row.flag, " slots ", row.slots));
    const auto devices = ParseDevices(row.flag, row.slots, row.cuda_devices);
    std::string text(devices.status().message());
    if (devices.ok()) {
      text = absl::StrJoin(*devices, " ", [](std::string* out, const DeviceSlot& slot) {
        absl::StrAppend(out, slot.device, "#", slot.index);
      });
    }
    EXPECT_THAT(text, ::testing::StartsWith(row.expected));
  }
}

}  // namespace
}  // namespace muster
