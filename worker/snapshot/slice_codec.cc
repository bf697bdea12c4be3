#include "worker/snapshot/slice_codec.h"

#include <bit>
#include <cstring>

#include "absl/status/status.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are stored little-endian");
constexpr int64_t kMostDims = 16;
constexpr int64_t kMostElements = int64_t{1} << 50;

}  // namespace

void ByteWriter::Number(int64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void ByteWriter::Numbers(const std::vector<int64_t>& values) {
  Number(static_cast<int64_t>(values.size()));
  for (const int64_t value : values) Number(value);
}

void ByteWriter::Text(absl::string_view text) {
  Number(static_cast<int64_t>(text.size()));
  bytes_.append(text.data(), text.size());
}

void ByteWriter::Slice(const TransferSlice& slice) {
  Text(slice.tensor);
  Number(static_cast<int64_t>(slice.dtype));
  Numbers(slice.global_shape);
  Numbers(slice.box.offset);
  Numbers(slice.box.shape);
  Number(slice.box.flat_begin);
  Number(slice.box.flat_end);
  Number(slice.allow_dim0_padding ? 1 : 0);
}

int64_t ByteReader::Number() {
  int64_t value = 0;
  if (rest_.size() < sizeof(value)) {
    ok_ = false;
    rest_ = {};
    return 0;
  }
  std::memcpy(&value, rest_.data(), sizeof(value));
  rest_.remove_prefix(sizeof(value));
  return value;
}

int64_t ByteReader::Count(int64_t most) {
  const int64_t count = Number();
  if (count >= 0 && count <= most) return count;
  ok_ = false;
  rest_ = {};
  return 0;
}

std::vector<int64_t> ByteReader::Numbers() {
  std::vector<int64_t> values(static_cast<size_t>(Count(kMostDims)));
  for (int64_t& value : values) value = Number();
  return values;
}

std::string ByteReader::Text() {
  const int64_t size = Count(bytes_left());
  // The length itself was taken off first.
  if (size > bytes_left()) {
    ok_ = false;
    rest_ = {};
    return {};
  }
  std::string text(rest_.substr(0, static_cast<size_t>(size)));
  rest_.remove_prefix(static_cast<size_t>(size));
  return text;
}

TransferSlice ByteReader::Slice() {
  TransferSlice slice;
  slice.tensor = Text();
  slice.dtype = static_cast<DType>(Count(static_cast<int64_t>(DType::kF64)));
  slice.global_shape = Numbers();
  slice.box.offset = Numbers();
  slice.box.shape = Numbers();
  slice.box.flat_begin = Number();
  slice.box.flat_end = Number();
  slice.allow_dim0_padding = Number() != 0;
  const size_t dims = slice.global_shape.size();
  if (slice.box.offset.size() != dims || slice.box.shape.size() != dims ||
      slice.box.flat_begin < 0 || slice.box.flat_end < slice.box.flat_begin ||
      slice.box.flat_end > kMostElements) {
    ok_ = false;
    return {};
  }
  return slice;
}

std::string EncodeTexts(const std::map<std::string, std::string>& texts) {
  ByteWriter out;
  out.Number(static_cast<int64_t>(texts.size()));
  for (const auto& [key, text] : texts) {
    out.Text(key);
    out.Text(text);
  }
  return out.Take();
}

absl::StatusOr<std::map<std::string, std::string>> DecodeTexts(absl::string_view bytes) {
  ByteReader in(bytes);
  std::map<std::string, std::string> texts;
  for (int64_t n = in.Count(in.bytes_left()); n > 0 && in.ok(); --n) {
    std::string key = in.Text();
    texts[std::move(key)] = in.Text();
  }
  if (!in.ok() || !in.at_end()) return absl::DataLossError("damaged list of texts");
  return texts;
}

}  // namespace muster
