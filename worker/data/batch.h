// What the data side hands to a forward step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// One microbatch of this rank; B = micro batch size, S = sequence length (tokens).
struct Batch {
  at::Tensor tokens;        // (B, S) int64
  at::Tensor labels;        // (B, S) int64
  at::Tensor loss_mask;     // (B, S) fp32: 1 counts, 0 does not
  at::Tensor position_ids;  // (B, S) int64
  at::Tensor
      attention_mask;  // (B, 1, S, S) bool, true = masked; undefined = plain causal (the fast path)
};

// A map-style dataset: sample i is the same whenever and wherever it is read.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;  // samples
  // The samples `indices`, collated. OUT_OF_RANGE for an index outside [0, size()).
  virtual absl::StatusOr<Batch> Collate(const std::vector<int64_t>& indices) const = 0;
};

// Microbatches in order; endless for training (the cyclic loader) or until OUT_OF_RANGE ("end of
// data").
class DataIterator {
 public:
  virtual ~DataIterator() = default;
  virtual absl::StatusOr<Batch> Next() = 0;
};

}  // namespace muster
