#include "worker/parallel/finalize_grads.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {

absl::Status FinalizeModelGrads(DistributedDataParallel& ddp, const ParallelContext& parallel,
                                std::optional<at::Tensor> num_tokens) {
  for (const char* group : {"tp", "pp"}) {
    if (const int size = parallel.Group(group).size(); size > 1) {
      return absl::UnimplementedError(absl::StrCat("gradients cannot be finalized over ", group,
                                                   "=", size, " yet; set it to 1"));
    }
  }
  for (int chunk = 0; chunk < ddp.num_chunks(); ++chunk)
    RETURN_IF_ERROR(Annotate(ddp.FinishGradSync(chunk), "all-grads-sync"));

  if (num_tokens) {
    // With pp above 1 the last stage's count is broadcast over pp first.
    RETURN_IF_ERROR(Annotate(parallel.Group("dp_cp").AllReduce(*num_tokens, ReduceOp::kSum)->Wait(),
                             "token count"));
    const int64_t total = num_tokens->item<int64_t>();
    ddp.ScaleGradients(1.0 / static_cast<double>(std::max<int64_t>(total, 1)));
  }
  return absl::OkStatus();
}

}  // namespace muster
