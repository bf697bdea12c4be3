#include "worker/model/unit_border.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>

#include "worker/ops/autograd_op.h"

namespace muster {

void CallBeforeForward(const UnitHookList& hooks, int unit) {
  for (UnitHooks* each : *hooks) each->BeforeForward(unit);
}

void CallAfterForward(const UnitHookList& hooks, int unit) {
  for (auto each = hooks->rbegin(); each != hooks->rend(); ++each) (*each)->AfterForward(unit);
}

bool AnyClosesUnits(const UnitHookList& hooks) {
  return std::any_of(hooks->begin(), hooks->end(),
                     [](const UnitHooks* each) { return each->closes_units(); });
}

PendingAdd MarkBorder(const UnitHookList& hooks, const PendingAdd& x, int before, int after) {
  if (hooks->empty() || !at::GradMode::is_enabled()) return x;
  TensorList through;
  {
    OpForward forward;
    through.push_back(at::alias(x.residual));
    if (x.branch.defined()) through.push_back(at::alias(x.branch));
  }
  TensorList inputs = {x.residual};
  if (x.branch.defined()) inputs.push_back(x.branch);
  through = RecordOp(std::move(through), inputs,
                     [hooks, before, after](const TensorList& grads, const NeedsGrad&) {
                       if (after >= 0) {
                         for (auto each = hooks->rbegin(); each != hooks->rend(); ++each)
                           (*each)->AfterBackward(after);
                       }
                       if (before >= 0) {
                         for (UnitHooks* each : *hooks) each->BeforeBackward(before);
                       }
                       return grads;
                     });
  PendingAdd marked = x;
  marked.residual = through[0];
  if (x.branch.defined()) marked.branch = through[1];
  return marked;
}

}  // namespace muster
