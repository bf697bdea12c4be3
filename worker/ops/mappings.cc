#include "worker/ops/mappings.h"

#include <ATen/ops/empty.h>

#include "common/base/check.h"
#include "worker/ops/autograd_op.h"

namespace muster {

PendingRows StartAllReduce(const TensorParallel& tp, const at::Tensor& rows) {
  MUSTER_CHECK(rows.is_contiguous());
  return {rows, tp.comm->AllReduce(rows, ReduceOp::kSum)};
}

PendingRows StartGather(const TensorParallel& tp, const at::Tensor& rows) {
  const at::Tensor all = at::empty({rows.size(0) * tp.size, rows.size(1)}, rows.options());
  return {all, tp.comm->AllGather(all, rows.detach().contiguous())};
}

PendingRows StartReduceScatter(const TensorParallel& tp, const at::Tensor& rows) {
  MUSTER_CHECK_MSG(rows.size(0) % tp.size == 0, "the sequence is cut into equal slices");
  const at::Tensor slice = at::empty({rows.size(0) / tp.size, rows.size(1)}, rows.options());
  return {slice, tp.comm->ReduceScatter(slice, rows.detach().contiguous(), ReduceOp::kSum)};
}

PendingRows StartReduce(const TensorParallel& tp, const at::Tensor& rows) {
  if (tp.sequence_parallel) return StartReduceScatter(tp, rows);
  return StartAllReduce(tp, rows);
}

at::Tensor GatherColumnsOp(const TensorParallel& tp, const at::Tensor& columns) {
  const int64_t rows = columns.size(0), width = columns.size(1);
  at::Tensor whole;
  {
    OpForward forward;
    const at::Tensor parts = StartGather(tp, columns).Wait();  // (tp N, C / tp)
    whole = parts.view({tp.size, rows, width}).transpose(0, 1).reshape({rows, tp.size * width});
  }
  return RecordOp(whole, {columns}, [tp, width](const TensorList& grads, const NeedsGrad&) {
    return TensorList{grads[0].narrow(1, tp.rank * width, width)};
  });
}

}  // namespace muster
