#include "worker/agent/machine_cores.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxCpus = 8192;
constexpr int kMaxNodes = 1024;

std::string FirstLine(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

// The number behind `prefix` in a name, such as 3 in "node3".
std::optional<int> NumberedName(absl::string_view name, absl::string_view prefix) {
  int number = 0;
  if (!absl::ConsumePrefix(&name, prefix) || !absl::SimpleAtoi(name, &number)) return std::nullopt;
  return number;
}

int NodeOfCpu(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (auto node = NumberedName(entry.path().filename().string(), "node")) return *node;
  }
  return 0;
}

// The mask as sched_getaffinity gives it, in a buffer that is large enough; empty on an error.
std::vector<char> AffinityMask() {
  std::vector<char> mask(CPU_ALLOC_SIZE(kMaxCpus));
  if (sched_getaffinity(0, mask.size(), reinterpret_cast<cpu_set_t*>(mask.data())) != 0) return {};
  return mask;
}

}  // namespace

std::vector<Core> AllowedCores(const std::string& sys) {
  std::vector<char> mask = AffinityMask();
  std::vector<Core> cores;
  if (mask.empty()) return cores;
  for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (!CPU_ISSET_S(cpu, mask.size(), reinterpret_cast<cpu_set_t*>(mask.data()))) continue;
    const std::string folder = absl::StrCat(sys, "/devices/system/cpu/cpu", cpu);
    const auto siblings = ParseCpuList(FirstLine(folder + "/topology/thread_siblings_list"));
    const bool known = siblings.has_value() && !siblings->empty();
    cores.push_back(
        {.cpu = cpu, .physical = known ? siblings->front() : cpu, .numa_node = NodeOfCpu(folder)});
  }
  return cores;
}

int CountNumaNodes(const std::string& sys) {
  std::error_code error;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(sys + "/devices/system/node", error)) {
    count += NumberedName(entry.path().filename().string(), "node").has_value();
  }
  return std::max(count, 1);
}

int NumaNodeOfDevice(absl::string_view device, const std::string& sys, const std::string& proc) {
  const std::optional<int> ordinal = NumberedName(device, "cuda:");
  if (!ordinal) return -1;
  std::vector<std::string> addresses;  // "0000:1b:00.0"
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(proc + "/driver/nvidia/gpus", error)) {
    addresses.push_back(absl::AsciiStrToLower(entry.path().filename().string()));
  }
  std::sort(addresses.begin(), addresses.end());
  if (*ordinal < 0 || *ordinal >= static_cast<int>(addresses.size())) return -1;
  int node = -1;
  const std::string path =
      absl::StrCat(sys, "/bus/pci/devices/", addresses[*ordinal], "/numa_node");
  return absl::SimpleAtoi(FirstLine(path), &node) ? node : -1;
}

ScopedBinding::ScopedBinding(const std::vector<int>& cpus, int memory_node) {
  if (!cpus.empty()) {
    std::vector<char> mask(CPU_ALLOC_SIZE(kMaxCpus));
    for (const int cpu : cpus) {
      if (cpu < 0 || cpu >= kMaxCpus) continue;
      CPU_SET_S(cpu, mask.size(), reinterpret_cast<cpu_set_t*>(mask.data()));
    }
    old_mask_ = AffinityMask();
    if (sched_setaffinity(0, mask.size(), reinterpret_cast<cpu_set_t*>(mask.data())) != 0) {
      problem_ = absl::StrCat("sched_setaffinity to ", CpuList(cpus), ": ", strerror(errno));
      old_mask_.clear();
    }
  }
  if (memory_node >= 0 && memory_node < kMaxNodes) {
    unsigned long nodes[kMaxNodes / (8 * sizeof(unsigned long))] = {};
    constexpr int kBits = 8 * sizeof(unsigned long);
    nodes[memory_node / kBits] |= 1ul << (memory_node % kBits);
    if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, kMaxNodes) == 0) {
      memory_bound_ = true;
    } else if (problem_.empty()) {
      problem_ = absl::StrCat("set_mempolicy to node ", memory_node, ": ", strerror(errno));
    }
  }
}

ScopedBinding::~ScopedBinding() {
  if (!old_mask_.empty()) {
    sched_setaffinity(0, old_mask_.size(), reinterpret_cast<cpu_set_t*>(old_mask_.data()));
  }
  if (memory_bound_) syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
}

}  // namespace muster
