// manifest.json of a checkpoint: which file and bytes hold which part of which tensor, with
// checksums, and the state that is not tensors. Written by rank 0 from the parts that all ranks
// report. Pure.
//
// Invariants (CheckManifest): the slices of a tensor together hold each of its elements once (by
// count), lie inside it, and name listed files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ckpt/safetensors.h"

namespace muster {

inline constexpr int64_t kManifestVersion = 1;

// A part of a tensor: elements [flat_begin, flat_end), in row-major order, of the box `shape` at
// `offset`. A plain slice has flat_begin 0 and flat_end the box's size.
struct SliceBox {
  std::vector<int64_t> offset, shape;
  int64_t flat_begin = 0, flat_end = 0;
};
// The whole box.
SliceBox WholeBox(std::vector<int64_t> offset, std::vector<int64_t> shape);

struct ManifestSlice {
  SliceBox box;
  std::string file;            // inside the checkpoint's folder
  int64_t begin = 0, end = 0;  // bytes of the file
  uint32_t crc32c = 0;
};

struct ManifestTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> global_shape;
  std::vector<ManifestSlice> slices;
};

// Every file but the manifest. Of a shard the header's checksum is here and the tensors' are with
// the slices; of a small file (state) the header is all of it.
struct ManifestFile {
  int64_t bytes = 0;
  int64_t header_bytes = 0;
  uint32_t header_crc32c = 0;
};

// What one rank contributes.
struct ManifestPart {
  std::map<std::string, ManifestTensor> tensors;
  std::map<std::string, ManifestFile> files;
};

struct Manifest {
  int64_t format_version = kManifestVersion;
  std::string muster_version;
  int64_t iteration = 0;
  int64_t epoch = 0;       // of the job, when it was saved
  int64_t world_size = 0;  // ranks that saved it
  ManifestPart content;    // of all ranks
};

std::string PartToJson(const ManifestPart& part);
absl::StatusOr<ManifestPart> PartFromJson(absl::string_view text);

// Adds `part`. INVALID_ARGUMENT when ranks disagree on a tensor's shape or dtype, or two wrote one
// file.
absl::Status MergePart(const ManifestPart& part, ManifestPart& whole);

// INVALID_ARGUMENT naming the tensor and what is missing or there twice.
absl::Status CheckManifest(const Manifest& manifest);

// The text ends with its own checksum, so that any flipped byte of it is found. DATA_LOSS: damaged;
// FAILED_PRECONDITION: a newer format version.
std::string ManifestToJson(const Manifest& manifest);
absl::StatusOr<Manifest> ManifestFromJson(absl::string_view text);

}  // namespace muster
