#include "worker/parallel/block_pool.h"

#include <utility>

#include <ATen/ATen.h>

#include "common/base/check.h"

namespace muster {

at::Tensor BlockPool::Take(int64_t bytes) {
  std::vector<at::Tensor>& free = free_[bytes];
  if (free.empty()) {
    allocated_bytes_ += bytes;
    return at::empty({bytes}, at::TensorOptions(device_).dtype(at::kByte));
  }
  at::Tensor block = std::move(free.back());
  free.pop_back();
  return block;
}

void BlockPool::Give(at::Tensor block) {
  std::vector<at::Tensor>& free = free_[block.numel()];
  free.push_back(std::move(block));
}

LentTensor::LentTensor(int64_t numel, at::ScalarType dtype, at::Device device) {
  const auto bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  // The storage has its final size, so that views can be made of it; only the pointer is missing.
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, at::DataPtr(nullptr, device),
      /*allocator=*/nullptr, /*resizable=*/false));
  tensor_ = at::empty({0}, at::TensorOptions(device).dtype(dtype));
  tensor_.set_(std::move(storage), 0, {numel}, {1});
}

void LentTensor::Lend(BlockPool& pool) {
  MUSTER_CHECK(!has_memory());
  block_ = pool.Take(static_cast<int64_t>(tensor_.storage().nbytes()));
  // The storage holds the block too: memory in use by a collective outlives this object.
  at::DataPtr pointer(
      block_.data_ptr(), new at::Tensor(block_),
      [](void* block) { delete static_cast<at::Tensor*>(block); }, block_.device());
  tensor_.storage().set_data_ptr_noswap(std::move(pointer));
}

void LentTensor::Return(BlockPool& pool) {
  MUSTER_CHECK(has_memory());
  tensor_.storage().set_data_ptr_noswap(at::DataPtr(nullptr, tensor_.device()));
  pool.Give(std::exchange(block_, at::Tensor()));
}

}  // namespace muster
