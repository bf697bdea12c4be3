#include "worker/checkpoint/shard_reader.h"

#include <cstring>

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/ckpt/crc32c.h"
#include "common/ckpt/reshard.h"
#include "worker/checkpoint/tensor_slice.h"

namespace muster {
namespace {

absl::Status Damaged(const std::string& path, absl::string_view what, int64_t begin, int64_t end) {
  return absl::DataLossError(
      absl::StrFormat("%s: bytes %d to %d (%s) are damaged: their crc32c is not the manifest's",
                      path, begin, end, std::string(what)));
}

bool SameShape(const std::vector<int64_t>& saved, const std::vector<int64_t>& wanted,
               bool allow_dim0_padding) {
  if (saved == wanted) return true;
  return allow_dim0_padding && !saved.empty() && saved.size() == wanted.size() &&
         std::equal(saved.begin() + 1, saved.end(), wanted.begin() + 1);
}

}  // namespace

absl::StatusOr<const MappedFile*> ShardReader::Map(const std::string& name) {
  std::unique_ptr<MappedFile>& file = files_[name];
  if (file != nullptr) return file.get();
  const std::string path = absl::StrCat(folder_, "/", name);
  const auto listed = manifest_.content.files.find(name);
  if (listed == manifest_.content.files.end()) {
    return absl::DataLossError(absl::StrCat(path, ": the manifest does not list it"));
  }
  absl::StatusOr<std::unique_ptr<MappedFile>> opened = MappedFile::Open(path);
  if (!opened.ok()) return absl::DataLossError(opened.status().message());
  const absl::string_view bytes = (*opened)->bytes();
  if (static_cast<int64_t>(bytes.size()) != listed->second.bytes) {
    return absl::DataLossError(absl::StrCat(path, ": has ", bytes.size(),
                                            " bytes, the manifest says ", listed->second.bytes));
  }
  const int64_t header = listed->second.header_bytes;
  if (Crc32c(bytes.substr(0, static_cast<size_t>(header))) != listed->second.header_crc32c) {
    return Damaged(path, "header", 0, header);
  }
  file = *std::move(opened);
  return file.get();
}

absl::StatusOr<std::string> ShardReader::ReadState(const std::string& name) {
  ASSIGN_OR_RETURN(const MappedFile* file, Map(name));
  return std::string(file->bytes());
}

absl::StatusOr<const char*> ShardReader::BytesOf(const std::string& tensor_name,
                                                 const ManifestSlice& slice) {
  ASSIGN_OR_RETURN(const MappedFile* file, Map(slice.file));
  const absl::string_view bytes = file->bytes().substr(
      static_cast<size_t>(slice.begin), static_cast<size_t>(slice.end - slice.begin));
  if (verified_.insert({slice.file, slice.begin}).second && Crc32c(bytes) != slice.crc32c) {
    return Damaged(file->path(), absl::StrCat("tensor ", tensor_name), slice.begin, slice.end);
  }
  return bytes.data();
}

absl::Status ShardReader::Fill(const NamedTensor& tensor) {
  ASSIGN_OR_RETURN(const TensorSlice target, SliceOf(tensor));
  const auto found = manifest_.content.tensors.find(tensor.name);
  if (found == manifest_.content.tensors.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor \"", tensor.name, "\" is not in the checkpoint ", folder_,
                     ", which holds ", manifest_.content.tensors.size(), " tensors"));
  }
  const ManifestTensor& saved = found->second;
  if (!SameShape(saved.global_shape, target.global_shape, tensor.allow_dim0_padding)) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor \"", tensor.name, "\" is (", absl::StrJoin(saved.global_shape, ", "),
                     ") in the checkpoint ", folder_, ", but (",
                     absl::StrJoin(target.global_shape, ", "), ") in this model"));
  }
  at::Tensor data = tensor.data.detach();
  const at::ScalarType saved_type = ScalarTypeOf(saved.dtype);
  const bool in_place =
      data.device().is_cpu() && data.scalar_type() == saved_type && data.is_contiguous();
  // Elsewhere the elements are put together on the CPU, in the saved type. With padding some
  // elements keep their values, so it begins as a copy.
  at::Tensor staging = data;
  if (!in_place) {
    staging = at::empty(data.sizes(), at::TensorOptions().dtype(saved_type));
    if (tensor.allow_dim0_padding) staging.copy_(data);
  }
  char* const out = static_cast<char*>(staging.mutable_data_ptr());
  const int64_t size = DTypeSize(saved.dtype);
  int64_t filled = 0;
  for (const ManifestSlice& slice : saved.slices) {
    absl::Status status;
    const char* bytes = nullptr;
    filled += ForEachCommonRun(slice.box, target.box,
                               [&](int64_t source, int64_t destination, int64_t count) {
                                 if (bytes == nullptr && status.ok()) {
                                   const auto verified = BytesOf(tensor.name, slice);
                                   status = verified.status();
                                   if (verified.ok()) bytes = *verified;
                                 }
                                 if (bytes == nullptr) return;
                                 std::memcpy(out + destination * size, bytes + source * size,
                                             static_cast<size_t>(count * size));
                               });
    RETURN_IF_ERROR(status);
  }
  // The manifest's slices add up by count; only slices that overlap can leave a hole here.
  if (filled != data.numel() && saved.global_shape == target.global_shape) {
    return absl::DataLossError(absl::StrCat("tensor \"", tensor.name, "\" of the checkpoint ",
                                            folder_, ": its slices overlap and leave holes"));
  }
  if (!in_place) data.copy_(staging);
  return absl::OkStatus();
}

}  // namespace muster
