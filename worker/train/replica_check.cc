#include "worker/train/replica_check.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/sha1.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr int64_t kDigest = static_cast<int64_t>(sizeof(Sha1Digest));  // bytes

Sha1Digest DigestOf(const at::Tensor& data) {
  const at::Tensor copy = data.detach().to(at::kCPU, at::kFloat).contiguous();
  return Sha1(absl::string_view(static_cast<const char*>(copy.const_data_ptr()),
                                static_cast<size_t>(copy.nbytes())));
}

// "ranks 0, 2 hold sha1 12ab.., ranks 1 hold ..": `digests` of one parameter by member of `group`.
std::string WhoHoldsWhat(const Communicator& group, const std::vector<std::string>& digests) {
  std::map<std::string, std::vector<int>> holders;
  for (size_t i = 0; i < digests.size(); ++i) holders[digests[i]].push_back(group.ranks()[i]);
  return absl::StrJoin(holders, "; ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, "rank", entry.second.size() > 1 ? "s " : " ",
                    absl::StrJoin(entry.second, ", "), " with SHA-1 ",
                    absl::BytesToHexString(entry.first));
  });
}

// All members have the same parameters in the same order. Returns what differs; empty: nothing.
absl::StatusOr<std::string> Difference(const std::vector<ParameterPtr>& params, Communicator& group,
                                       c10::Device device) {
  if (params.empty() || group.size() == 1) return std::string();
  const auto num = static_cast<int64_t>(params.size());
  at::Tensor mine = at::empty({num, kDigest}, at::kByte);
  for (int64_t i = 0; i < num; ++i) {
    const Sha1Digest digest = DigestOf(params[static_cast<size_t>(i)]->data);
    std::memcpy(mine.data_ptr<uint8_t>() + i * kDigest, digest.data(), digest.size());
  }
  mine = mine.to(device);
  at::Tensor all = at::empty({group.size(), num, kDigest}, mine.options());
  RETURN_IF_ERROR(Annotate(group.AllGather(all, mine)->Wait(), "comparing replicas"));
  all = all.cpu();
  const auto* bytes = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
  for (int64_t i = 0; i < num; ++i) {
    std::vector<std::string> digests;
    for (int64_t member = 0; member < group.size(); ++member)
      digests.emplace_back(bytes + (member * num + i) * kDigest, static_cast<size_t>(kDigest));
    for (const std::string& digest : digests) {
      if (digest == digests[0]) continue;
      return absl::StrCat(params[static_cast<size_t>(i)]->name, " is held by ",
                          WhoHoldsWhat(group, digests));
    }
  }
  return std::string();
}

}  // namespace

absl::Status CheckReplicas(JobState& state) {
  DataParallel& ddp = *state.ddp;
  const bool hooks = ddp.forward_pre_hook_enabled();
  if (hooks) RETURN_IF_ERROR(ddp.DisableForwardPreHook(/*param_sync=*/true));
  if (ddp.shards_hold_parameters()) RETURN_IF_ERROR(ddp.SyncParams());
  std::vector<ParameterPtr> dense, experts;
  for (const ParameterPtr& p : ParametersOf(state)) (p->allreduce ? dense : experts).push_back(p);
  ASSIGN_OR_RETURN(std::string difference,
                   Difference(dense, state.parallel.Group("dp"), state.device));
  ASSIGN_OR_RETURN(const std::string of_experts,
                   Difference(experts, state.parallel.Group("expert_dp"), state.device));
  if (difference.empty()) difference = of_experts;

  // The barrier, which also tells ranks whose own parameters are the same everywhere.
  at::Tensor differs = at::full({1}, difference.empty() ? 0 : 1,
                                at::TensorOptions().dtype(at::kLong).device(state.device));
  RETURN_IF_ERROR(Annotate(state.parallel.world().AllReduce(differs, ReduceOp::kMax)->Wait(),
                           "comparing replicas"));
  if (differs.item<int64_t>() != 0) {
    if (difference.empty()) difference = "other ranks name a parameter";
    return absl::InternalError(absl::StrCat("after iteration ", state.progress.iteration,
                                            " data parallel replicas differ: ", difference));
  }
  if (hooks) ddp.EnableForwardPreHook();
  return ddp.ReleaseParams();
}

}  // namespace muster
