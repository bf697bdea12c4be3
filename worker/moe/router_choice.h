// Which experts a token goes to, given its scores (reference 14.4). Nothing here is recorded in
// autograd's graph.
//
// Ties go to the lowest expert number, on every device: a choice depends on one row alone, so that
// it is the same however rows are spread over ranks. (LibTorch's topk breaks ties by how it happens
// to partition a row, and differently on CPU and GPU.)
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace muster {

// scores (N, n), fp32 or fp64 -> (N, k) int64: the columns of each row's k largest entries, largest
// first.
at::Tensor TopkColumns(const at::Tensor& scores, int64_t k);

// The same within the best group_topk of num_groups equal blocks of columns; a block's score is the
// sum of its best k / group_topk entries (node-limited routing, DeepSeek-V3).
at::Tensor GroupLimitedTopk(const at::Tensor& scores, int64_t k, int64_t num_groups,
                            int64_t group_topk);

// logits (T, E) fp32 -> exp(logits) with rows and columns scaled by turns until all rows have the
// same sum and all columns too (Sinkhorn and Knopp 1967; Megatron's sinkhorn). Reads the device
// back once a turn.
at::Tensor SinkhornNormalized(const at::Tensor& logits);

}  // namespace muster
