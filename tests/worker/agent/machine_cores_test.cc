#include "worker/agent/machine_cores.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class MachineCoresTest : public ::testing::Test {
 protected:
  MachineCoresTest() {
    char pattern[] = "/tmp/muster-cores-XXXXXX";
    root_ = mkdtemp(pattern);
  }
  ~MachineCoresTest() override { fs::remove_all(root_); }
  void Put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  std::string root_;
};

TEST_F(MachineCoresTest, OwnMaskIsWhatProcSays) {
  std::vector<int> cpus;
  for (const Core& core : AllowedCores()) cpus.push_back(core.cpu);
  std::ifstream status("/proc/self/status");
  std::string line, listed;
  while (std::getline(status, line)) {
    if (line.rfind("Cpus_allowed_list:", 0) == 0) listed = line.substr(line.find('\t') + 1);
  }
  EXPECT_EQ(CpuList(cpus), listed);
}

TEST_F(MachineCoresTest, NodesAndSiblingsComeFromTheKernelsFolders) {
  const std::vector<Core> real = AllowedCores();
  ASSERT_FALSE(real.empty());
  const std::string cpu = absl::StrCat("/sys/devices/system/cpu/cpu", real.back().cpu);
  Put(cpu + "/topology/thread_siblings_list", absl::StrCat("0,", real.back().cpu));
  Put(cpu + "/node1/x", "");
  Put("/sys/devices/system/node/node0/x", "");
  Put("/sys/devices/system/node/node1/x", "");
  const std::vector<Core> cores = AllowedCores(root_ + "/sys");
  EXPECT_EQ(cores.size(), real.size());
  EXPECT_EQ(cores.back().physical, 0);
  EXPECT_EQ(cores.back().numa_node, 1);
  EXPECT_EQ(CountNumaNodes(root_ + "/sys"), 2);
  EXPECT_EQ(CountNumaNodes(root_ + "/nothing"), 1);
}

TEST_F(MachineCoresTest, DevicesAreCountedInTheOrderOfTheirAddresses) {
  Put("/proc/driver/nvidia/gpus/0000:9B:00.0/information", "");
  Put("/proc/driver/nvidia/gpus/0000:1b:00.0/information", "");
  Put("/sys/bus/pci/devices/0000:1b:00.0/numa_node", "0");
  Put("/sys/bus/pci/devices/0000:9b:00.0/numa_node", "1");
  const auto node = [&](const char* device) {
    return NumaNodeOfDevice(device, root_ + "/sys", root_ + "/proc");
  };
  EXPECT_EQ(node("cuda:0"), 0);
  EXPECT_EQ(node("cuda:1"), 1);
  EXPECT_EQ(node("cuda:2"), -1);
  EXPECT_EQ(node("cpu"), -1);
  EXPECT_EQ(NumaNodeOfDevice("cuda:0", root_ + "/sys", root_ + "/none"), -1);
}

TEST_F(MachineCoresTest, BindingHoldsForItsLifeAndForThisThreadOnly) {
  const std::vector<Core> before = AllowedCores();
  {
    const ScopedBinding binding({before.front().cpu}, -1);
    EXPECT_EQ(binding.problem(), "");
    EXPECT_EQ(AllowedCores().size(), 1u);
  }
  EXPECT_EQ(AllowedCores().size(), before.size());
  const ScopedBinding binding({8000}, -1);
  EXPECT_THAT(binding.problem(), HasSubstr("sched_setaffinity to 8000"));
  EXPECT_EQ(AllowedCores().size(), before.size());
}

TEST_F(MachineCoresTest, MemoryPolicyIsInheritedAndTakenBack) {
  int mode = -1;
  {
    const ScopedBinding binding({}, 0);
    if (!binding.problem().empty()) GTEST_SKIP() << binding.problem();
    ASSERT_EQ(syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0), 0);
    EXPECT_EQ(mode, MPOL_PREFERRED);
  }
  ASSERT_EQ(syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0), 0);
  EXPECT_EQ(mode, MPOL_DEFAULT);
}

}  // namespace
}  // namespace muster
