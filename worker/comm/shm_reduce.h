// Reductions over plain memory, in rank order and with one rounding a step, so that the bits are
// those of local_reduce.h whatever the size and the timing. Torch-free, vectorised.
#pragma once

#include <cstddef>

namespace muster {

enum class ShmDtype { kFloat, kDouble, kHalf, kBfloat16, kInt64, kInt32, kInt8, kUint8, kBool };
enum class ShmReduceOp { kSum, kMax, kMin };

// out[i] = parts[0][i] op parts[1][i] op ..., for `count` elements. `out` may be one of the parts.
// A sum of bools is "or". A NaN stays one, also in max and min. num_parts >= 2.
using ShmReduceFn = void (*)(void* out, const void* const* parts, int num_parts, size_t count);

ShmReduceFn FindShmReduce(ShmDtype dtype, ShmReduceOp op);

}  // namespace muster
