// Told when a pass enters and leaves a unit of a model chunk: a transformer layer. Who shards
// parameters unit by unit gathers and releases them here (reference 15.1); who traces a step takes
// the time.
//
// Of one unit, in this order: BeforeForward, AfterForward, ... BeforeBackward, AfterBackward. With
// activation recomputation forward passes run again inside the backward pass: BeforeForward and
// AfterForward of the checkpoint's units are called again, first to last, between BeforeBackward
// and AfterBackward of its last unit. So a forward call that comes while some unit is between its
// backward calls is of a recomputation. AfterBackward of a unit comes right before BeforeBackward
// of the unit below it.
//
// BeforeBackward comes before anything of the unit's backward pass reads a parameter,
// AfterBackward when all its gradients have been delivered. One exception: where no hook
// closes_units, the last bias of a layer is added by the norm of the next one, which reads it and
// delivers its gradient.
//
// May throw CollectiveError. One thread a call; on a GPU the backward calls come from autograd's.
#pragma once

namespace muster {

class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  // `unit`: Parameter::unit.
  virtual void BeforeForward(int unit) = 0;
  virtual void AfterForward(int unit) = 0;
  virtual void BeforeBackward(int unit) = 0;
  virtual void AfterBackward(int unit) = 0;
  // Must all that reads a unit's parameters lie between the calls of that unit? Then a layer's last
  // sum is finished before it ends: the same numbers, one more pass over the hidden states a layer.
  virtual bool closes_units() const { return false; }
};

}  // namespace muster
