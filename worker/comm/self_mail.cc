#include "worker/comm/self_mail.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "common/base/status.h"
#include "worker/comm/tensor_checks.h"

namespace muster {

void CopyFlat(const at::Tensor& output, const at::Tensor& input) {
  c10::NoGradGuard no_grad;
  if (output.numel() == 0 || output.data_ptr() == input.data_ptr()) return;
  output.detach().view(-1).copy_(input.detach().view(-1));
}

absl::Status SelfMail::Exchange(const std::vector<P2POp>& batch, int rank) {
  for (const P2POp& op : batch) {
    if (op.peer == rank && op.kind == P2POp::Kind::kSend) {
      sent_[op.channel].push_back(op.tensor.detach().clone());
    }
  }
  for (const P2POp& op : batch) {
    if (op.peer != rank || op.kind != P2POp::Kind::kRecv) continue;
    std::deque<at::Tensor>& sent = sent_[op.channel];
    if (sent.empty()) {
      return absl::InvalidArgumentError(
          "a rank cannot receive from itself what it has not sent on this channel: put the send "
          "into this batch or an earlier one");
    }
    RETURN_IF_ERROR(CheckSlices("received tensor", op.tensor, "sent tensor", sent.front(), 1));
    CopyFlat(op.tensor, sent.front());
    sent.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace muster
