// Fills tensors of any slicing from the shards of a checkpoint. One thread.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ckpt/manifest.h"
#include "common/files/mapped_file.h"
#include "worker/checkpoint/checkpoint.h"

namespace muster {

class ShardReader {
 public:
  ShardReader(std::string folder, const Manifest& manifest)
      : folder_(std::move(folder)), manifest_(manifest) {}

  // FAILED_PRECONDITION: not in the checkpoint, or of another global shape; DATA_LOSS: a damaged
  // file.
  absl::Status Fill(const NamedTensor& tensor);
  // A state file, verified whole.
  absl::StatusOr<std::string> ReadState(const std::string& name);

 private:
  absl::StatusOr<const MappedFile*> Map(const std::string& name);
  // The bytes of a slice, their checksum verified once.
  absl::StatusOr<const char*> BytesOf(const std::string& tensor_name, const ManifestSlice& slice);

  const std::string folder_;
  const Manifest& manifest_;
  std::map<std::string, std::unique_ptr<MappedFile>> files_;
  std::set<std::pair<std::string, int64_t>> verified_;  // file, begin
};

}  // namespace muster
