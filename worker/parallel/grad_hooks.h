// Brings gradients that ordinary autograd computed into Parameter::main_grad.
#pragma once

#include "worker/parallel/parameter.h"

namespace muster {

// From now on, whenever a backward pass has accumulated parameter->data.grad(), it is moved into
// main_grad (Parameter::AccumulateGrad, which tells the sink) and grad() is undefined again.
// Parameters whose backward functions call AccumulateGrad themselves never reach the hook.
void InstallGradHook(const ParameterPtr& parameter);
void RemoveGradHook(Parameter& parameter);

}  // namespace muster
