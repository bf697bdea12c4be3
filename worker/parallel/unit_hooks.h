// Told when a pass enters and leaves a unit of a model chunk: a transformer layer. Who shards
// parameters unit by unit gathers and releases them here (reference 15.1); who traces a step takes
// the time.
//
// Of one unit, in this order: BeforeForward, AfterForward, ... BeforeBackward, AfterBackward. With
// activation recomputation the unit's forward pass runs again between the last two, and its
// BeforeForward and AfterForward are called again. BeforeBackward comes before anything of the
// unit's backward pass reads a parameter, AfterBackward when all its gradients have been
// delivered. May throw CollectiveError. One thread a call; on a GPU the backward calls come from
// autograd's.
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
};

}  // namespace muster
