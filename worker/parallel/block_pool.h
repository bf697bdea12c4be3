// Memory for tensors that are needed for a part of a step only: the gathered parameters and the
// local gradients of one unit (fsdp.h).
//
// A LentTensor is one tensor, with views, for its whole life; its memory comes from the pool and
// goes back. So a leaf, its aliases and what autograd's closures hold stay valid; who reads one
// without memory meets a null pointer, never old numbers. On a GPU a block may be lent again as
// soon as the host has returned it: what reads it was issued before on the same stream, and
// collectives wait for that stream. Thread-safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster {

// Keeps every block that it made, by size: a step that repeats allocates nothing.
class BlockPool {
 public:
  explicit BlockPool(at::Device device) : device_(device) {}
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  at::Tensor Take(int64_t bytes);  // (bytes) uint8, of any content
  void Give(at::Tensor block);
  int64_t allocated_bytes() const { return allocated_bytes_; }

 private:
  const at::Device device_;
  std::map<int64_t, std::vector<at::Tensor>> free_;
  int64_t allocated_bytes_ = 0;  // of all blocks, lent ones too
};

class LentTensor {
 public:
  // No memory at first.
  LentTensor(int64_t numel, at::ScalarType dtype, at::Device device);

  const at::Tensor& tensor() const { return tensor_; }  // (numel)
  bool has_memory() const { return block_.defined(); }
  void Lend(BlockPool& pool);  // needs has_memory() false; content undefined
  // The caller has waited for whoever writes it.
  void Return(BlockPool& pool);

 private:
  at::Tensor tensor_;
  at::Tensor block_;
};

}  // namespace muster
