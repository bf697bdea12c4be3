// What one generation of a rank's snapshot holds, and how it lies in memory: an index, then the
// tensors' bytes. All offsets are relative, so that a copy of the bytes is a copy of the snapshot.
// Pure, no torch. Layout: docs/formats.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ckpt/transfer_plan.h"

namespace muster {

struct SnapshotContent {
  std::string layout;  // StatePieces::layout: pieces of different layouts do not add up
  std::vector<int64_t> pieces;
  int64_t num_pieces = 0;
  std::vector<TransferSlice> tensors;
  std::map<std::string, std::string> texts;  // JSON by key
};

struct PlacedContent {
  std::string index;            // the content's first bytes
  std::vector<int64_t> begins;  // of each tensor's bytes
  int64_t bytes = 0;            // all of it
};

inline constexpr int64_t kTensorAlignment = 64;  // bytes

// Bytes of a slice's elements.
int64_t NumBytes(const TransferSlice& slice);

PlacedContent Place(const SnapshotContent& content);

struct IndexedContent {
  SnapshotContent content;
  std::vector<int64_t> begins;
};
// DATA_LOSS: not an index, or one that points outside of `content_bytes`.
absl::StatusOr<IndexedContent> ReadIndex(absl::string_view index, int64_t content_bytes);

}  // namespace muster
