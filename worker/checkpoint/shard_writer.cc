#include "worker/checkpoint/shard_writer.h"

#include <vector>

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/ckpt/commit.h"
#include "common/ckpt/crc32c.h"
#include "common/ckpt/layout.h"
#include "worker/checkpoint/tensor_slice.h"

namespace muster {
namespace {

struct ShardEntry {
  const NamedTensor* tensor;
  TensorSlice slice;
};

absl::Status WriteState(FileOps& files, const std::string& folder, const std::string& name,
                        const std::string& text, ManifestPart& part) {
  RETURN_IF_ERROR(WriteSyncedFile(files, absl::StrCat(folder, "/", name), text));
  const int64_t size = static_cast<int64_t>(text.size());
  part.files[name] = {.bytes = size, .header_bytes = size, .header_crc32c = Crc32c(text)};
  return absl::OkStatus();
}

absl::Status WriteTensors(FileOps& files, const std::string& folder, const std::string& name,
                          const std::vector<NamedTensor>& tensors, ManifestPart& part) {
  std::vector<TensorInfo> infos;
  std::map<std::string, ShardEntry> entries;  // by name in the file
  for (const NamedTensor& tensor : tensors) {
    if (!tensor.write) continue;
    ASSIGN_OR_RETURN(TensorSlice slice, SliceOf(tensor));
    absl::StatusOr<DType> dtype = DTypeOf(tensor.data.scalar_type());
    if (!dtype.ok()) return Annotate(dtype.status(), absl::StrCat("tensor ", tensor.name));
    ManifestTensor& listed = part.tensors[tensor.name];
    if (!listed.global_shape.empty() &&
        (listed.global_shape != slice.global_shape || listed.dtype != *dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", tensor.name, "\" is given twice, with different shapes"));
    }
    listed.dtype = *dtype;
    listed.global_shape = slice.global_shape;
    // A rank may hold several ranges of one tensor.
    std::string entry_name = tensor.name;
    for (int copy = 2; entries.contains(entry_name); ++copy) {
      entry_name = absl::StrCat(tensor.name, "#", copy);
    }
    infos.push_back({entry_name, *dtype, tensor.data.sizes().vec()});
    entries[entry_name] = {&tensor, std::move(slice)};
  }
  ASSIGN_OR_RETURN(SafetensorsLayout layout, PlanSafetensors(infos, {{"format", "muster-shard"}}));
  at::Tensor held;  // keeps the bytes alive while they are written
  RETURN_IF_ERROR(WriteSafetensors(
      files, absl::StrCat(folder, "/", name), layout,
      [&](size_t i) -> absl::StatusOr<absl::string_view> {
        held = entries.at(layout.places[i].info.name).tensor->data.detach().cpu().contiguous();
        return absl::string_view(static_cast<const char*>(held.const_data_ptr()), held.nbytes());
      }));
  for (const TensorPlace& place : layout.places) {
    const ShardEntry& entry = entries.at(place.info.name);
    part.tensors[entry.tensor->name].slices.push_back({.box = entry.slice.box,
                                                       .file = name,
                                                       .begin = place.begin,
                                                       .end = place.end,
                                                       .crc32c = place.crc32c});
  }
  part.files[name] = {.bytes = layout.file_bytes,
                      .header_bytes = static_cast<int64_t>(layout.header.size()),
                      .header_crc32c = Crc32c(layout.header)};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ManifestPart> WriteShard(FileOps& files, const std::string& folder, int rank,
                                        const CheckpointState& state) {
  ManifestPart part;
  RETURN_IF_ERROR(files.CreateDirectories(folder));
  RETURN_IF_ERROR(WriteTensors(files, folder, ShardName(rank), state.tensors, part));
  RETURN_IF_ERROR(WriteState(files, folder, RankStateName(rank), state.rank_json, part));
  if (rank == 0) {
    RETURN_IF_ERROR(WriteState(files, folder, kCommonStateName, state.common_json, part));
  }
  RETURN_IF_ERROR(files.SyncDirectory(folder));
  return part;
}

}  // namespace muster
