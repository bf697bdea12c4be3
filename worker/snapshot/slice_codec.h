// Lists of slices and texts as bytes: what members of a transfer tell each other, and the index of
// a snapshot. Numbers are little-endian 64-bit, texts have their length in front. Pure, no torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ckpt/transfer_plan.h"

namespace muster {

class ByteWriter {
 public:
  void Number(int64_t value);
  void Numbers(const std::vector<int64_t>& values);
  void Text(absl::string_view text);
  void Slice(const TransferSlice& slice);
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what a ByteWriter wrote. After the first thing that does not fit, everything reads as empty
// and ok() is false: look once, at the end.
class ByteReader {
 public:
  explicit ByteReader(absl::string_view bytes) : rest_(bytes) {}

  int64_t Number();
  // At most `most`, so that damaged bytes cannot ask for endless memory.
  int64_t Count(int64_t most);
  std::vector<int64_t> Numbers();
  std::string Text();
  TransferSlice Slice();
  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }
  int64_t bytes_left() const { return static_cast<int64_t>(rest_.size()); }

 private:
  absl::string_view rest_;
  bool ok_ = true;
};

std::string EncodeTexts(const std::map<std::string, std::string>& texts);
// DATA_LOSS: not what EncodeTexts wrote.
absl::StatusOr<std::map<std::string, std::string>> DecodeTexts(absl::string_view bytes);

}  // namespace muster
