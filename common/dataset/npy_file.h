// An immutable array of integers, owned or mapped from a .npy file (numpy's format 1.0), read as
// int64 whatever its width. Thread-safe to read.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/file_ops.h"

namespace muster {

enum class IndexType { kInt32, kInt64, kUint32 };

class IndexArray {
 public:
  IndexArray() = default;
  static IndexArray FromInt32(std::vector<int32_t> values) {
    return Own(IndexType::kInt32, std::move(values));
  }
  static IndexArray FromInt64(std::vector<int64_t> values) {
    return Own(IndexType::kInt64, std::move(values));
  }
  static IndexArray FromUint32(std::vector<uint32_t> values) {
    return Own(IndexType::kUint32, std::move(values));
  }
  // Maps the file. NOT_FOUND when there is none; DATA_LOSS for another format, type or size.
  static absl::StatusOr<IndexArray> Map(const std::string& path);
  // Writes it as a .npy file of shape (size / columns, columns), or (size,) for columns = 1; aside
  // and renamed.
  absl::Status Write(FileOps& files, const std::string& path, int64_t columns) const;

  IndexType type() const { return type_; }
  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    switch (type_) {
      case IndexType::kInt32:
        return Load<int32_t>(i);
      case IndexType::kInt64:
        return Load<int64_t>(i);
      case IndexType::kUint32:
        break;
    }
    return Load<uint32_t>(i);
  }
  std::vector<int64_t> ToVector() const;

 private:
  template <typename T>
  static IndexArray Own(IndexType type, std::vector<T> values) {
    auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    IndexArray array;
    array.type_ = type;
    array.size_ = static_cast<int64_t>(owner->size());
    array.data_ = reinterpret_cast<const char*>(owner->data());
    array.owner_ = std::move(owner);
    return array;
  }
  template <typename T>
  int64_t Load(int64_t i) const {
    T value;
    std::memcpy(&value, data_ + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return static_cast<int64_t>(value);
  }

  std::shared_ptr<const void> owner_;  // a vector or a MappedFile
  const char* data_ = nullptr;
  int64_t size_ = 0;  // elements
  IndexType type_ = IndexType::kInt64;
};

}  // namespace muster
