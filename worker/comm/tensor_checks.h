// What every backend checks before it starts an operation (the contract of communicator.h), so that
// a wrong size is an INVALID_ARGUMENT on the rank that made it and never a read out of bounds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/comm/op_log.h"

namespace muster {

// A literal such as "float" or "bfloat16".
const char* DtypeName(at::ScalarType dtype);
const char* ReduceOpName(ReduceOp op);

OpShape ShapeOf(const char* op, const at::Tensor& in);
OpShape ShapeOf(const char* op, const at::Tensor& in, const at::Tensor& out);
// Of a send_recv that somebody observes (OpLog::observed).
std::vector<OpTransfer> TransfersOf(const std::vector<P2POp>& batch);

// Defined, dense, contiguous.
absl::Status CheckTensor(const char* name, const at::Tensor& tensor);
// whole.numel() == size * part.numel(), same dtype; both pass CheckTensor.
absl::Status CheckSlices(const char* whole_name, const at::Tensor& whole, const char* part_name,
                         const at::Tensor& part, int size);
// Rows of dim 0 for each member, in elements; `splits` empty: equal parts. The sum must be the
// tensor's rows.
absl::StatusOr<std::vector<int64_t>> SplitElements(const char* name, const at::Tensor& tensor,
                                                   const std::vector<int64_t>& splits, int size);
absl::Status CheckAllToAll(const at::Tensor& output, const at::Tensor& input);
absl::Status CheckBatch(const std::vector<P2POp>& batch, int size);
absl::Status CheckRoot(int root, int size);
// Distinct, inside [0, size), at least one.
absl::Status CheckMembers(const std::string& name, const std::vector<int>& members, int size);
// Index of `rank` in `members`, -1 if absent.
int IndexOf(const std::vector<int>& members, int rank);

}  // namespace muster
