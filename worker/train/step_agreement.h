// The reduction that commits a step (design 2.5). Every rank calls Agree once a step, when its
// gradients are final and the norm reductions are done, before its optimizer step. If it returns on
// any rank, all ranks hold final gradients of that step. One thread.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "common/control/agreement.h"
#include "common/control/directive_log.h"
#include "worker/comm/communicator.h"
#include "worker/train/trainer_host.h"

namespace muster {

class Snapshotter;

struct AgreedStep {
  StepDecision decision;
  AgreementVector vector{};  // what was reduced
  std::vector<Directive>
      directives;  // to act on at the end of this step, in order; the same on every rank
};

class StepAgreement {
 public:
  // Borrows all of them. `log`: holds what was applied before. `snapshots`: may be null.
  StepAgreement(Communicator& world, TrainerHost& host, DirectiveLog& log, Snapshotter* snapshots,
                at::Device device);

  // One MAX all-reduce of five int64 over the world. Fails as the collective does. `mine`: what
  // this rank says; its directives and snapshots are filled in here.
  absl::StatusOr<AgreedStep> Agree(StepVote mine);

  // Of a step that is held: what was agreed on is to be acted on when the step is committed.
  void TakeBack(const std::vector<Directive>& directives) { log_.TakeBack(directives); }

  int64_t applied_through() const { return log_.applied_through(); }

 private:
  Communicator& world_;
  TrainerHost& host_;
  DirectiveLog& log_;
  Snapshotter* const snapshots_;
  at::Tensor votes_;  // (5) int64 on the communicator's device, reused
};

}  // namespace muster
