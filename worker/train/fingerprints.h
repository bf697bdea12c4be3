// Notes a hash of all that this rank gives to collective operations while a step is examined
// (common/rerun/examination.h). Nothing of it is there at other times: the groups' handles are
// bound to listening ones for the two runs, and back. The rank's thread, and autograd's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/rerun/examination.h"
#include "common/runtime/mutex.h"
#include "worker/comm/communicator.h"
#include "worker/comm/rebindable_communicator.h"
#include "worker/parallel/parallel_context.h"

namespace muster {

// Of the values' bits. Waits for a GPU.
uint64_t HashOf(const at::Tensor& tensor);

class FingerprintLog {
 public:
  // What this rank gives to an operation of a group, or only takes part in (undefined tensor).
  void Add(const std::string& group, const std::vector<int>& ranks, const std::string& op,
           const at::Tensor& given);
  void AddResult(const std::vector<double>& values);
  std::vector<Fingerprint> Take();

 private:
  Mutex mu_;
  std::map<std::pair<std::string, std::string>, int64_t> sequences_ ABSL_GUARDED_BY(mu_);
  std::vector<Fingerprint> entries_ ABSL_GUARDED_BY(mu_);
};

// While it lives, `log` hears of all groups of the rank. Borrows both.
class ListenToGroups {
 public:
  ListenToGroups(const ParallelContext& parallel, FingerprintLog& log);
  ~ListenToGroups();
  ListenToGroups(const ListenToGroups&) = delete;
  ListenToGroups& operator=(const ListenToGroups&) = delete;

 private:
  std::vector<std::pair<RebindableCommunicator*, CommunicatorPtr>> bound_before_;
};

}  // namespace muster
