// Registers LibTorch's CUDA allocator as the one that tells what tensors on a GPU take.
#pragma once

namespace muster {

// Once a process, before the first tensor on a GPU. Without it TensorMemoryOn(cuda) is zeros.
void CountCudaMemory();

}  // namespace muster
