#include "coordinator/core/device_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using testing::HasSubstr;

DeviceCheck Check(const std::string& serial, const std::string& fingerprint, double gb_per_s,
                  const std::string& kind = "H200") {
  return {.device = "cuda:0",
          .kind = kind,
          .serial = serial,
          .fingerprint = fingerprint,
          .copy_gb_per_s = gb_per_s};
}

class DeviceHealthTest : public testing::Test {
 protected:
  DeviceVerdict Judge(const DeviceCheck& check, const std::string& version = "1") {
    return health_.Judge(check, DeviceKind::kCuda, "w/0", version);
  }
  DeviceHealth health_;
};

TEST_F(DeviceHealthTest, ADeviceIsMeasuredAgainstItsOwnRecord) {
  EXPECT_TRUE(Judge(Check("a", "f1", 4000)).healthy);
  EXPECT_TRUE(Judge(Check("a", "f1", 2100)).healthy);
  const DeviceVerdict slow = Judge(Check("a", "f1", 1900));
  EXPECT_FALSE(slow.healthy);
  EXPECT_EQ(slow.reason,
            "copy bandwidth 1900 GB/s, its best was 4000 GB/s; must be at least 2000 GB/s");
  EXPECT_TRUE(Judge(Check("a", "f1", 4400)).healthy);
  EXPECT_FALSE(Judge(Check("a", "f1", 2100)).healthy);  // the best has risen
  const DeviceVerdict other = Judge(Check("a", "f2", 4400));
  EXPECT_FALSE(other.healthy);
  EXPECT_THAT(other.reason, HasSubstr("is f2, and was f1 on this device before"));
  // A failed check changes no record.
  EXPECT_EQ(*health_.Find("a"), (DeviceRecord{"H200", "1", "f1", 4400}));
}

TEST_F(DeviceHealthTest, ANewDeviceMustAgreeWithTheMajorityOfItsKind) {
  struct Row {
    const char* name;
    std::vector<const char*> others;
    bool healthy;
  };
  const Row rows[] = {
      {"the first", {}, true},
      {"one other is no majority", {"f1"}, true},
      {"two others agree", {"f1", "f1"}, false},
      {"two of three", {"f1", "f1", "f2"}, false},
      {"half is no majority", {"f1", "f1", "f2", "f2"}, true},
      {"it is of the majority", {"f2", "f2", "f1"}, true},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    DeviceHealth health;
    // They got in when there was no majority yet: each with a version of its own, then all with 1.
    DurableChanges saved;
    for (size_t i = 0; i < row.others.size(); ++i) {
      health.Judge(Check(absl::StrCat("d", i), row.others[i], 10), DeviceKind::kCuda, "w", "own");
    }
    if (row.others.size() < 4) {
      ASSERT_EQ(health.Judge(Check("new", "f2", 10), DeviceKind::kCuda, "w", "own").healthy,
                row.healthy);
    }
    // Another kind and another version do not count.
    EXPECT_TRUE(health.Judge(Check("k", "f9", 10, "B200"), DeviceKind::kCuda, "w", "own").healthy);
    EXPECT_TRUE(health.Judge(Check("v", "f9", 10), DeviceKind::kCuda, "w", "other").healthy);
  }
}

TEST_F(DeviceHealthTest, AnotherVersionMayComputeByAnotherPath) {
  EXPECT_TRUE(Judge(Check("a", "f1", 4000)).healthy);
  EXPECT_TRUE(Judge(Check("a", "f2", 4000), "2").healthy);
  EXPECT_FALSE(Judge(Check("a", "f1", 4000), "2").healthy);
}

TEST_F(DeviceHealthTest, ErrorsFailAndWhatWasNotRunSaysNothing) {
  DeviceCheck check = Check("a", "", 0);
  check.error = "CUDA error: an illegal memory access";
  EXPECT_THAT(Judge(check).reason, HasSubstr("illegal memory access"));
  check.not_run = true;
  EXPECT_TRUE(Judge(check).healthy);
  EXPECT_EQ(health_.Find("a"), nullptr);
}

TEST_F(DeviceHealthTest, ACpuIsSharedAndItsBandwidthIsJudgedMildly) {
  DeviceCheck check = Check("", "f1", 10, "Xeon");
  const auto judge = [&](double gb_per_s) {
    check.copy_gb_per_s = gb_per_s;
    return health_.Judge(check, DeviceKind::kCpu, "n/0", "1").healthy;
  };
  EXPECT_TRUE(judge(10));
  EXPECT_TRUE(judge(2));
  EXPECT_FALSE(judge(0.5));
}

TEST_F(DeviceHealthTest, ASerialIsTheDeviceWhereverItIs) {
  EXPECT_TRUE(health_.Judge(Check("s", "f1", 10), DeviceKind::kCuda, "n1/0", "1").healthy);
  EXPECT_FALSE(health_.Judge(Check("s", "f2", 10), DeviceKind::kCuda, "n2/3", "1").healthy);
  // Without one it is the worker's.
  EXPECT_TRUE(health_.Judge(Check("", "f1", 10, "x"), DeviceKind::kCpu, "n1/0", "1").healthy);
  EXPECT_TRUE(health_.Judge(Check("", "f2", 10, "x"), DeviceKind::kCpu, "n2/0", "1").healthy);
}

TEST_F(DeviceHealthTest, APersonsWordMakesTheRecordAnew) {
  EXPECT_TRUE(Judge(Check("a", "f1", 4000)).healthy);
  EXPECT_FALSE(Judge(Check("a", "f2", 1000)).healthy);
  health_.Forget("w/0");
  EXPECT_TRUE(Judge(Check("a", "f2", 1000)).healthy);
}

TEST_F(DeviceHealthTest, RecordsOutliveTheCoordinator) {
  Judge(Check("a", "f1", 4000));
  DurableChanges changes;
  EXPECT_TRUE(health_.unsaved());
  health_.TakeChanges(&changes);
  EXPECT_FALSE(health_.unsaved());
  ASSERT_EQ(changes.records.size(), 1u);
  DeviceHealth again;
  ASSERT_TRUE(again.RestoreRecord(changes.records[0].key, *changes.records[0].value).ok());
  EXPECT_EQ(*again.Find("a"), *health_.Find("a"));
  Judge(Check("a", "f1", 3000));  // no better than before
  EXPECT_FALSE(health_.unsaved());
  health_.Forget("w/0");
  DurableChanges erased;
  health_.TakeChanges(&erased);
  ASSERT_EQ(erased.records.size(), 1u);
  EXPECT_FALSE(erased.records[0].value.has_value());
  EXPECT_FALSE(again.RestoreRecord("device/zz", "{}").ok());
  EXPECT_FALSE(again.RestoreRecord("device/61", "{\"best_gb_per_s\":-1}").ok());
}

}  // namespace
}  // namespace muster
