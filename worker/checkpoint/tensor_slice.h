// Between at::Tensor and the checkpoint's own types.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/ckpt/manifest.h"
#include "common/ckpt/safetensors.h"
#include "worker/checkpoint/checkpoint.h"

namespace muster {

absl::StatusOr<DType> DTypeOf(at::ScalarType type);
at::ScalarType ScalarTypeOf(DType dtype);

struct TensorSlice {
  SliceBox box;
  std::vector<int64_t> global_shape;
};
// The slice that `tensor` holds, its defaults filled in. INVALID_ARGUMENT names the tensor: dims or
// sizes that do not fit each other.
absl::StatusOr<TensorSlice> SliceOf(const NamedTensor& tensor);

}  // namespace muster
