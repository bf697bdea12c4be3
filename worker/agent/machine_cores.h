// What the agent may use of this machine: cores, NUMA nodes, and where the devices sit. Reads the
// kernel's folders only; no CUDA.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/core/core_split.h"

namespace muster {

// The cores of this process's affinity mask, which a cpuset cgroup narrows too, sorted by number.
// `sys`: /sys, or a folder like it.
std::vector<Core> AllowedCores(const std::string& sys = "/sys");
int CountNumaNodes(const std::string& sys = "/sys");

// Where "cuda:N" sits; -1 for a CPU slot, or when the kernel does not say. Device N is the N-th by
// PCI address, as CUDA numbers devices of one kind. `proc`: /proc.
int NumaNodeOfDevice(absl::string_view device, const std::string& sys = "/sys",
                     const std::string& proc = "/proc");

// For the time of its life, what the calling thread starts is bound so (the child of a fork or
// posix_spawn inherits both): to these cores (none: as it is), and with memory from `memory_node`
// preferred (-1: as it is). Not thread-safe; a thread has one at a time.
class ScopedBinding {
 public:
  ScopedBinding(const std::vector<int>& cpus, int memory_node);
  ~ScopedBinding();
  ScopedBinding(const ScopedBinding&) = delete;
  // What could not be done ("sched_setaffinity to 0-3: Invalid argument"); empty: all is well.
  const std::string& problem() const { return problem_; }

 private:
  std::vector<char> old_mask_;  // empty: unchanged
  bool memory_bound_ = false;
  std::string problem_;
};

}  // namespace muster
