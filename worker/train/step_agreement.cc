#include "worker/train/step_agreement.h"

#include <ATen/ATen.h>

#include <tuple>

#include "common/base/status.h"
#include "common/runtime/log.h"
#include "worker/snapshot/snapshotter.h"

namespace muster {
namespace {

constexpr int64_t kVotes = std::tuple_size_v<AgreementVector>;

}  // namespace

StepAgreement::StepAgreement(Communicator& world, TrainerHost& host, DirectiveLog& log,
                             Snapshotter* snapshots, at::Device device)
    : world_(world),
      host_(host),
      log_(log),
      snapshots_(snapshots),
      votes_(at::zeros({kVotes}, at::TensorOptions().dtype(at::kLong).device(device))) {}

absl::StatusOr<AgreedStep> StepAgreement::Agree(StepVote mine) {
  for (const Directive& directive : host_.TakeDirectives()) {
    if (absl::Status status = log_.Receive(directive); !status.ok()) {
      MUSTER_LOG(kError) << "directive refused: " << status.message();
    }
  }
  mine.gap_free_directive = log_.gap_free_through();
  if (snapshots_ != nullptr) mine.snapshot_complete = snapshots_->complete_through();
  AgreementVector vector = ToVector(mine);
  // A world of one reduces too: an abort must end its attempt as well.
  at::Tensor host_votes = at::from_blob(vector.data(), {kVotes}, at::kLong);
  votes_.copy_(host_votes);
  if (absl::Status status = world_.AllReduce(votes_, ReduceOp::kMax)->Wait(); !status.ok()) {
    return Annotate(status, "the step's agreement");
  }
  host_votes.copy_(votes_);
  AgreedStep step;
  step.decision = FromReduced(vector);
  step.vector = vector;
  if (snapshots_ != nullptr) snapshots_->OnCounted(step.decision.snapshots_counted);
  step.directives = log_.Apply(step.decision.apply_directives_through);
  return step;
}

}  // namespace muster
