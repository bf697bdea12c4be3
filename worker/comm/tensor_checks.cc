#include "worker/comm/tensor_checks.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace muster {

const char* DtypeName(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float";
    case at::kDouble:
      return "double";
    case at::kHalf:
      return "half";
    case at::kBFloat16:
      return "bfloat16";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kShort:
      return "int16";
    case at::kChar:
      return "int8";
    case at::kByte:
      return "uint8";
    case at::kBool:
      return "bool";
    default:
      return "other";
  }
}

const char* ReduceOpName(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  return "?";
}

OpShape ShapeOf(const char* op, const at::Tensor& in) {
  if (!in.defined()) return {op, "undefined", 0, 0};
  return {op, DtypeName(in.scalar_type()), in.numel(), 0, static_cast<int64_t>(in.nbytes()), 0};
}

OpShape ShapeOf(const char* op, const at::Tensor& in, const at::Tensor& out) {
  OpShape shape = ShapeOf(op, in);
  if (out.defined()) {
    shape.num_elements_out = out.numel();
    shape.bytes_out = static_cast<int64_t>(out.nbytes());
  }
  return shape;
}

std::vector<OpTransfer> TransfersOf(const std::vector<P2POp>& batch) {
  std::vector<OpTransfer> transfers;
  for (const P2POp& op : batch) {
    transfers.push_back({op.kind == P2POp::Kind::kSend, op.peer, op.channel,
                         static_cast<int64_t>(op.tensor.nbytes())});
  }
  return transfers;
}

absl::Status CheckTensor(const char* name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is an undefined tensor"));
  }
  if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be dense and contiguous: call contiguous() first"));
  }
  return absl::OkStatus();
}

absl::Status CheckSlices(const char* whole_name, const at::Tensor& whole, const char* part_name,
                         const at::Tensor& part, int size) {
  RETURN_IF_ERROR(CheckTensor(whole_name, whole));
  RETURN_IF_ERROR(CheckTensor(part_name, part));
  if (whole.scalar_type() != part.scalar_type()) {
    return absl::InvalidArgumentError(
        absl::StrCat(whole_name, " is ", DtypeName(whole.scalar_type()), " but ", part_name, " is ",
                     DtypeName(part.scalar_type()), ": they must agree"));
  }
  if (whole.numel() != size * part.numel()) {
    return absl::InvalidArgumentError(absl::StrCat(whole_name, " has ", whole.numel(),
                                                   " elements; it needs ", size, " x ",
                                                   part.numel(), " (members x ", part_name, ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> SplitElements(const char* name, const at::Tensor& tensor,
                                                   const std::vector<int64_t>& splits, int size) {
  const int64_t num_rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const int64_t row = tensor.dim() == 0 ? 1 : tensor.numel() / std::max<int64_t>(1, num_rows);
  if (splits.empty()) {
    if (num_rows % size != 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has ", num_rows, " rows, which ", size,
                                                     " members cannot share equally"));
    }
    return std::vector<int64_t>(size, num_rows / size * row);
  }
  const bool valid = static_cast<int>(splits.size()) == size &&
                     std::all_of(splits.begin(), splits.end(), [](int64_t s) { return s >= 0; }) &&
                     std::accumulate(splits.begin(), splits.end(), int64_t{0}) == num_rows;
  if (!valid) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "_splits [", absl::StrJoin(splits, ", "), "] must be ", size,
                     " counts >= 0 that add up to the ", num_rows, " rows of ", name));
  }
  std::vector<int64_t> elements(splits);
  for (int64_t& count : elements) count *= row;
  return elements;
}

absl::Status CheckAllToAll(const at::Tensor& output, const at::Tensor& input) {
  RETURN_IF_ERROR(CheckTensor("output", output));
  RETURN_IF_ERROR(CheckTensor("input", input));
  if (output.scalar_type() != input.scalar_type()) {
    return absl::InvalidArgumentError(absl::StrCat("output is ", DtypeName(output.scalar_type()),
                                                   " but input is ", DtypeName(input.scalar_type()),
                                                   ": they must agree"));
  }
  return absl::OkStatus();
}

absl::Status CheckBatch(const std::vector<P2POp>& batch, int size) {
  for (const P2POp& op : batch) {
    RETURN_IF_ERROR(
        CheckTensor(op.kind == P2POp::Kind::kSend ? "sent tensor" : "received tensor", op.tensor));
    if (op.peer < 0 || op.peer >= size) {
      return absl::InvalidArgumentError(
          absl::StrCat("peer=", op.peer, " must be a rank of the group: 0 to ", size - 1));
    }
    if (op.channel < 0 || op.channel >= kNumP2PChannels) {
      return absl::InvalidArgumentError(
          absl::StrCat("channel=", op.channel, " must be 0 to ", kNumP2PChannels - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRoot(int root, int size) {
  if (root >= 0 && root < size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("root=", root, " must be a rank of the group: 0 to ", size - 1));
}

absl::Status CheckMembers(const std::string& name, const std::vector<int>& members, int size) {
  std::vector<int> sorted(members);
  std::sort(sorted.begin(), sorted.end());
  const bool distinct = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (!sorted.empty() && distinct && sorted.front() >= 0 && sorted.back() < size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("split ", name, ": members [", absl::StrJoin(members, ", "),
                   "] must be distinct ranks of the parent group, 0 to ", size - 1));
}

int IndexOf(const std::vector<int>& members, int rank) {
  const auto found = std::find(members.begin(), members.end(), rank);
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

}  // namespace muster
