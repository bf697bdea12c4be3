#include "common/tokenizer/byte_tokenizer.h"

namespace muster {

std::vector<int64_t> ByteTokenizer::Encode(absl::string_view text) const {
  std::vector<int64_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::Decode(const std::vector<int64_t>& ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const int64_t token : ids) {
    if (token >= 0 && token < kEod) text.push_back(static_cast<char>(token));
  }
  return text;
}

}  // namespace muster
