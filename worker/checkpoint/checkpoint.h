// Sharded checkpoints of a job: every rank writes its slices, any layout reads them back. Files and
// names: docs/formats.md; the pure parts (manifest, layout, reshard) are in common/ckpt.
//
// A save has two phases. First every rank writes its shard aside (data, checksums, fsync) and the
// ranks exchange their outcomes; then rank 0 alone writes the manifest, renames the folder into
// place, syncs, and writes the tracker last. So a crash at any byte leaves the previous checkpoint
// loadable, and a failure on any rank is every rank's error.
//
// Thread-safety: none; called from the trainer's one thread, collectively over `world`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/file_ops.h"
#include "worker/comm/communicator.h"

namespace muster {

// A slice of a tensor of the job: the box of shape `local_shape` at `global_offset` of a tensor of
// shape `global_shape`.
struct NamedTensor {
  std::string name;  // unique in the job: "decoder.layers.0...", "optimizer.exp_avg.decoder..."
  at::Tensor data;   // any dtype and device; contiguous
  std::vector<int64_t> global_shape;   // empty: data.sizes() (not sharded)
  std::vector<int64_t> global_offset;  // empty: zeros
  // Does this rank write the slice? Exactly one rank of the replicas does. Ignored by loads.
  bool write = true;

  // A distributed optimizer's range: `data` is 1-D and holds elements
  // [flat_begin, flat_begin + data.numel()) of the box in row-major order. Empty local_shape: the
  // box is data.sizes(), whole.
  std::vector<int64_t> local_shape;
  int64_t flat_begin = 0;

  // Loads only: dim 0 of the saved tensor may be larger or smaller (the padded vocabulary depends
  // on tp); elements beyond the saved ones keep their values.
  bool allow_dim0_padding = false;
};

struct CheckpointState {
  int64_t iteration = 0;             // completed iterations
  std::vector<NamedTensor> tensors;  // of this rank
  std::string common_json = "{}";    // rank 0's: spec, scheduler, scaler, counters, rerun state ...
  std::string rank_json = "{}";      // this rank's: RNG states and the like
};

struct SaveOptions {
  std::string root;   // checkpoint.save
  int64_t epoch = 0;  // of the job; in the aside folder's name and in the manifest
  std::optional<int64_t> save_retain_interval;  // Megatron's rule (G11.1)
  std::optional<int64_t> keep_last;             // newest checkpoints kept
  at::Device comm_device = at::kCPU;            // of `world`
  FileOps* files = nullptr;                     // nullptr: the real file system
};

struct SavedCheckpoint {
  std::string path;
  int64_t bytes = 0;               // of all ranks
  std::vector<std::string> notes;  // harmless trouble: an old checkpoint that could not be deleted
};

// Collective. INVALID_ARGUMENT for bad slices (not covering a tensor once, unknown dtype), else the
// first failing rank's code with "rank R: " and the reason, the same on every rank. The previous
// checkpoint is then still the newest one; calling again is the retry.
absl::StatusOr<SavedCheckpoint> SaveCheckpoint(const SaveOptions& options,
                                               const CheckpointState& state, Communicator& world);

struct LoadOptions {
  std::string root;                   // checkpoint.load
  std::optional<int64_t> ckpt_step;   // this one; not set: the newest complete one
  at::Device comm_device = at::kCPU;  // of `world`
  bool list_unread = false;           // on every rank or on none
};

struct LoadedCheckpoint {
  std::string path;
  int64_t iteration = 0;
  int64_t epoch = 0;
  int64_t world_size = 0;  // of the job that saved it
  std::string common_json;
  std::vector<std::string> notes;   // "tracker names iter_0000200, which is incomplete: ..."
  std::vector<std::string> unread;  // list_unread: tensors that no rank asked for, by name

  // What old rank `rank` gave as rank_json. DATA_LOSS when damaged, OUT_OF_RANGE for an unknown
  // rank.
  absl::StatusOr<std::string> RankJson(int64_t rank) const;
};

// Collective. Fills every tensor of `into` from the saved slices, whatever their slicing; checksums
// of all bytes used are verified; dtypes are converted where they differ. With an empty `into` only
// the state is read. NOT_FOUND, and only this: nothing was ever saved in root (start from scratch);
// FAILED_PRECONDITION: ckpt_step is not there, a tensor is missing or has another global shape;
// DATA_LOSS: a damaged file (name and byte range). The same error on every rank; tensors may then
// be partly filled.
absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const LoadOptions& options,
                                                std::vector<NamedTensor>& into,
                                                Communicator& world);

}  // namespace muster
