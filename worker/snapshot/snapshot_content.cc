#include "worker/snapshot/snapshot_content.h"

#include "absl/status/status.h"
#include "worker/snapshot/slice_codec.h"

namespace muster {
namespace {

int64_t Aligned(int64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

// Tensors' offsets count from the end of the index, so that its own size is not in it.
std::string EncodeIndex(const SnapshotContent& content, const std::vector<int64_t>& offsets) {
  ByteWriter out;
  out.Text(content.layout);
  out.Number(content.num_pieces);
  out.Number(static_cast<int64_t>(content.pieces.size()));
  for (const int64_t piece : content.pieces) out.Number(piece);
  out.Number(static_cast<int64_t>(content.tensors.size()));
  for (size_t i = 0; i < content.tensors.size(); ++i) {
    out.Slice(content.tensors[i]);
    out.Number(offsets[i]);
  }
  out.Text(EncodeTexts(content.texts));
  return out.Take();
}

}  // namespace

int64_t NumBytes(const TransferSlice& slice) {
  return (slice.box.flat_end - slice.box.flat_begin) * DTypeSize(slice.dtype);
}

PlacedContent Place(const SnapshotContent& content) {
  PlacedContent placed;
  int64_t used = 0;
  for (const TransferSlice& tensor : content.tensors) {
    placed.begins.push_back(used);
    used = Aligned(used + NumBytes(tensor));
  }
  placed.index = EncodeIndex(content, placed.begins);
  const int64_t data = Aligned(static_cast<int64_t>(placed.index.size()));
  for (int64_t& begin : placed.begins) begin += data;
  placed.bytes = data + used;
  return placed;
}

absl::StatusOr<IndexedContent> ReadIndex(absl::string_view index, int64_t content_bytes) {
  ByteReader in(index);
  IndexedContent read;
  SnapshotContent& content = read.content;
  content.layout = in.Text();
  content.num_pieces = in.Number();
  for (int64_t n = in.Count(in.bytes_left()); n > 0 && in.ok(); --n)
    content.pieces.push_back(in.Number());
  const int64_t data = Aligned(static_cast<int64_t>(index.size()));
  bool inside = true;
  for (int64_t n = in.Count(in.bytes_left()); n > 0 && in.ok(); --n) {
    content.tensors.push_back(in.Slice());
    const int64_t offset = in.Number();
    read.begins.push_back(data + offset);
    const int64_t bytes = NumBytes(content.tensors.back());
    inside = inside && offset >= 0 && bytes >= 0 && bytes <= content_bytes &&
             offset <= content_bytes && data + offset + bytes <= content_bytes;
  }
  auto texts = DecodeTexts(in.Text());
  if (!in.ok() || !in.at_end() || !inside || !texts.ok())
    return absl::DataLossError("the index of a snapshot cannot be read");
  content.texts = *std::move(texts);
  return read;
}

}  // namespace muster
