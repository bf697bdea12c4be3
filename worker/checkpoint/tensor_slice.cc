#include "worker/checkpoint/tensor_slice.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

struct TypePair {
  at::ScalarType torch;
  DType saved;
};
constexpr TypePair kTypes[] = {
    {at::kBool, DType::kBool},
    {at::kByte, DType::kU8},
    {at::kChar, DType::kI8},
    {at::kFloat8_e4m3fn, DType::kF8E4M3},
    {at::kFloat8_e5m2, DType::kF8E5M2},
    {at::kShort, DType::kI16},
    {at::ScalarType::UInt16, DType::kU16},
    {at::kHalf, DType::kF16},
    {at::kBFloat16, DType::kBF16},
    {at::kInt, DType::kI32},
    {at::ScalarType::UInt32, DType::kU32},
    {at::kFloat, DType::kF32},
    {at::kLong, DType::kI64},
    {at::ScalarType::UInt64, DType::kU64},
    {at::kDouble, DType::kF64},
};

}  // namespace

absl::StatusOr<DType> DTypeOf(at::ScalarType type) {
  for (const TypePair& pair : kTypes) {
    if (pair.torch == type) return pair.saved;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype ", c10::toString(type), " cannot be saved"));
}

at::ScalarType ScalarTypeOf(DType dtype) { return kTypes[static_cast<size_t>(dtype)].torch; }

absl::StatusOr<TensorSlice> SliceOf(const NamedTensor& tensor) {
  const auto bad = [&tensor](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\": ", what...));
  };
  if (!tensor.data.defined()) return bad("it has no data");
  const std::vector<int64_t> sizes = tensor.data.sizes().vec();
  const bool is_range = !tensor.local_shape.empty();
  TensorSlice slice;
  std::vector<int64_t> shape = is_range ? tensor.local_shape : sizes;
  slice.global_shape = tensor.global_shape.empty() ? shape : tensor.global_shape;
  std::vector<int64_t> offset = tensor.global_offset.empty()
                                    ? std::vector<int64_t>(slice.global_shape.size(), 0)
                                    : tensor.global_offset;
  if (shape.size() != slice.global_shape.size() || offset.size() != slice.global_shape.size()) {
    return bad("its shape (", absl::StrJoin(shape, ", "), "), global shape (",
               absl::StrJoin(slice.global_shape, ", "), ") and offset (",
               absl::StrJoin(offset, ", "), ") must have the same number of dims");
  }
  slice.box = WholeBox(std::move(offset), std::move(shape));
  for (size_t d = 0; d < slice.global_shape.size(); ++d) {
    if (slice.box.offset[d] < 0 ||
        slice.box.offset[d] > slice.global_shape[d] - slice.box.shape[d]) {
      return bad("its slice of ", slice.box.shape[d], " at ", slice.box.offset[d], " in dim ", d,
                 " lies outside the global extent ", slice.global_shape[d]);
    }
  }
  if (!is_range) return slice;
  const int64_t end = tensor.flat_begin + tensor.data.numel();
  if (tensor.data.dim() != 1 || tensor.flat_begin < 0 || end > slice.box.flat_end) {
    return bad("a range must be 1-D and inside its box: elements ", tensor.flat_begin, " to ", end,
               " of ", slice.box.flat_end);
  }
  slice.box.flat_begin = tensor.flat_begin;
  slice.box.flat_end = end;
  return slice;
}

}  // namespace muster
