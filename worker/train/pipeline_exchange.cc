#include "worker/train/pipeline_exchange.h"

#include <ATen/ops/empty.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/schedule/schedule_execution.h"

namespace muster {
namespace {

// The channel too.
int Direction(ScheduleOp::Kind kind) { return IsForwardMessage(kind) ? 0 : 1; }

std::string Name(ScheduleOp::Kind kind, int chunk, int microbatch) {
  return absl::StrCat(ScheduleOpName(kind), " of chunk ", chunk, ", microbatch ", microbatch);
}

}  // namespace

absl::Status PipelineExchange::Open() {
  if (options_.pp == nullptr) return absl::OkStatus();
  return options_.pp->OpenChannels();
}

at::Tensor PipelineExchange::Buffer() {
  if (spare_.empty()) {
    return at::empty(options_.hidden_shape,
                     at::TensorOptions().dtype(options_.hidden_dtype).device(options_.device));
  }
  at::Tensor buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

absl::Status PipelineExchange::Put(ScheduleOp::Kind send, int chunk, int microbatch,
                                   const at::Tensor& message) {
  if (message.sizes() != at::IntArrayRef(options_.hidden_shape) ||
      message.scalar_type() != options_.hidden_dtype || message.device() != options_.device) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(send, chunk, microbatch), ": the model made (", absl::StrJoin(message.sizes(), ", "),
        ") of ", at::toString(message.scalar_type()), " on ", message.device().str(),
        "; pipeline stages exchange (", absl::StrJoin(options_.hidden_shape, ", "), ") of ",
        at::toString(options_.hidden_dtype), " on ", options_.device.str()));
  }
  to_send_[Direction(send)][{chunk, microbatch}] = message.detach().contiguous();
  return absl::OkStatus();
}

absl::Status PipelineExchange::Post(absl::Span<const ScheduleOp> ops) {
  if (options_.pp == nullptr) {
    return absl::InvalidArgumentError(
        "the schedule holds a pipeline stage's operations, but there is no pipeline group");
  }
  Communicator& pp = *options_.pp;
  std::vector<P2POp> batch;
  std::array<bool, 2> sends = {false, false};
  for (const ScheduleOp& op : ops) {
    const int direction = Direction(op.kind), peer = PeerRank(pp.size(), pp.rank(), op.kind);
    if (!IsSend(op.kind)) {
      batch.push_back({P2POp::Kind::kRecv, Buffer(), peer, direction});
      continue;
    }
    auto message = to_send_[direction].extract({op.chunk, op.microbatch});
    if (message.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          Name(op.kind, op.chunk, op.microbatch), ": the schedule sends what was not computed"));
    }
    sends[direction] = true;
    batch.push_back({P2POp::Kind::kSend, std::move(message.mapped()), peer, direction});
  }
  for (int direction : {0, 1}) {
    if (sends[direction]) {
      RETURN_IF_ERROR(Forget(pending_[direction], kMaxPendingExchanges - 1));
    }
  }
  WorkPtr work = pp.SendRecv(batch);
  if (!options_.overlap) {
    RETURN_IF_ERROR(work->Wait());
    work = nullptr;  // it may hold what was sent
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    if (IsSend(ops[i].kind)) continue;
    received_[Direction(ops[i].kind)][{ops[i].chunk, ops[i].microbatch}] = {batch[i].tensor, work};
  }
  if (work == nullptr) return absl::OkStatus();
  for (int direction : {0, 1}) {
    if (sends[direction]) pending_[direction].push_back(work);
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> PipelineExchange::Take(ScheduleOp::Kind receive, int chunk,
                                                  int microbatch) {
  auto message = received_[Direction(receive)].extract({chunk, microbatch});
  if (message.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        Name(receive, chunk, microbatch), ": the schedule needs what it does not receive"));
  }
  if (message.mapped().work != nullptr) RETURN_IF_ERROR(message.mapped().work->Wait());
  return std::move(message.mapped().tensor);
}

void PipelineExchange::Recycle(at::Tensor message) {
  if (message.use_count() == 1 && message.storage().use_count() == 1) {
    spare_.push_back(std::move(message));
  }
}

absl::Status PipelineExchange::Forget(Pending& pending, size_t most_left) {
  for (auto work = pending.begin(); work != pending.end();) {
    if (!(*work)->IsDone()) {
      ++work;
      continue;
    }
    RETURN_IF_ERROR((*work)->Wait());
    work = pending.erase(work);
  }
  while (pending.size() > most_left) {
    const WorkPtr oldest = std::move(pending.front());
    pending.pop_front();
    RETURN_IF_ERROR(oldest->Wait());
  }
  return absl::OkStatus();
}

absl::Status PipelineExchange::Finish() {
  for (Pending& pending : pending_) RETURN_IF_ERROR(Forget(pending, 0));
  return absl::OkStatus();
}

}  // namespace muster
