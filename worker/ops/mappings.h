// How activation rows travel over the tensor-parallel group (reference 14.1). Rows are tokens,
// (N, C); with sequence parallelism a rank holds a slice of the sequence between the blocks, which
// in (S, B) order is a run of N / tp consecutive rows.
//
// Start... begins an exchange and returns at once, so that a matrix product can run meanwhile;
// Wait() gives the result and throws CollectiveError. Every member makes the same calls in the same
// order. Nothing is recorded in autograd's graph.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "worker/comm/communicator.h"

namespace muster {

// This rank's place in the tensor-parallel group; comm is null when it is alone in it.
struct TensorParallel {
  Communicator* comm = nullptr;
  int rank = 0, size = 1;
  // Rows between the blocks are this rank's slice of the sequence. Only with size > 1, and with
  // rows in (S, B) order.
  bool sequence_parallel = false;

  // Parts that the sequence is cut into between the blocks.
  int64_t sequence_parts() const { return sequence_parallel ? size : 1; }
};

class PendingRows {
 public:
  PendingRows() = default;
  PendingRows(at::Tensor rows, WorkPtr work) : rows_(std::move(rows)), work_(std::move(work)) {}
  at::Tensor Wait() const {
    if (work_ != nullptr) WaitOrThrow(work_);
    return rows_;
  }

 private:
  at::Tensor rows_;
  WorkPtr work_;
};

// Sum over the ranks, in place: `rows` is dense and belongs to the caller.
PendingRows StartAllReduce(const TensorParallel& tp, const at::Tensor& rows);
// (N / tp, C) of each rank -> (N, C) of all, in rank order.
PendingRows StartGather(const TensorParallel& tp, const at::Tensor& rows);
// (N, C) of each rank -> this rank's (N / tp, C) of their sum.
PendingRows StartReduceScatter(const TensorParallel& tp, const at::Tensor& rows);

// The sum where it is needed next: this rank's slice with sequence parallelism, else all of it. In
// place for the latter.
PendingRows StartReduce(const TensorParallel& tp, const at::Tensor& rows);

// (N, C / tp) of each rank -> (N, C), recorded in autograd's graph. Every rank goes on with the
// same computation, so the backward keeps this rank's columns.
at::Tensor GatherColumnsOp(const TensorParallel& tp, const at::Tensor& columns);

}  // namespace muster
