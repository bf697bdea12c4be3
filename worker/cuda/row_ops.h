// Registers the CUDA kernels for the model's row operations.
#pragma once

namespace muster {

// Once a process, before the first model is made.
void UseCudaRowOps();

}  // namespace muster
