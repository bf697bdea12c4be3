// Where there is no nvcc: nothing is registered.
#include "worker/cuda/row_ops.h"

namespace muster {

void UseCudaRowOps() {}

}  // namespace muster
