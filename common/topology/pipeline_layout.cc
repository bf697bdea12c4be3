#include "common/topology/pipeline_layout.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr size_t kLongestLayout = 100000;  // letters, written out

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// The number after the '*' at text[*at], if one is there; moves *at past it. 1 otherwise.
absl::StatusOr<size_t> RepeatCount(absl::string_view text, size_t* at) {
  if (*at >= text.size() || text[*at] != '*') return 1;
  size_t end = *at + 1;
  while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
  uint32_t count = 0;
  if (!absl::SimpleAtoi(text.substr(*at + 1, end - *at - 1), &count) || count > kLongestLayout) {
    return Invalid("needs a whole number (not a huge one) after '*'");
  }
  *at = end;
  return count;
}

absl::Status AppendRepeated(absl::string_view part, size_t count, std::string* out) {
  if (out->size() + part.size() * count > kLongestLayout) {
    return Invalid("is too long when written out");
  }
  for (size_t i = 0; i < count; ++i) out->append(part.data(), part.size());
  return absl::OkStatus();
}

// "(t*2|)*2L" -> "t*2|t*2|L"
absl::StatusOr<std::string> WriteOutGroups(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text[i] != '(') {
      out.push_back(text[i++]);
      continue;
    }
    const size_t close = text.find_first_of("()", i + 1);
    if (close == absl::string_view::npos) return Invalid("has a '(' that is not closed");
    if (text[close] == '(') return Invalid("has a group in a group; groups do not nest");
    size_t after = close + 1;
    if (after >= text.size() || text[after] != '*') {
      return Invalid("has a group without a repeat; write (...)*2");
    }
    ASSIGN_OR_RETURN(const size_t count, RepeatCount(text, &after));
    RETURN_IF_ERROR(AppendRepeated(text.substr(i + 1, close - i - 1), count, &out));
    i = after;
  }
  return out;
}

// "t*2|L" -> "tt|L"
absl::StatusOr<std::string> WriteOutLetters(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const absl::string_view letter = text.substr(i++, 1);
    if (absl::string_view("EtmL|").find(letter) == absl::string_view::npos) {
      return Invalid(absl::StrCat("has an unknown letter '", letter,
                                  "'; use E, t, m, L, '|', and x*k or (..)*k to repeat"));
    }
    ASSIGN_OR_RETURN(const size_t count, RepeatCount(text, &i));
    RETURN_IF_ERROR(AppendRepeated(letter, count, &out));
  }
  return out;
}

// `all`: the letters of all stages, one after the other.
absl::Status CheckLetters(absl::string_view all, const LayoutNeeds& needs) {
  const auto count = [&](char letter) { return std::count(all.begin(), all.end(), letter); };
  if (count('E') != 1 || all.front() != 'E')
    return Invalid("must have exactly one E, at its start");
  if (count('L') != 1 || all.back() != 'L') return Invalid("must have exactly one L, at its end");
  if (count('t') != needs.num_layers) {
    return Invalid(
        absl::StrCat("has ", count('t'), " layers (t); model.num_layers is ", needs.num_layers));
  }
  if (count('m') != needs.mtp_num_layers) {
    return Invalid(absl::StrCat("has ", count('m'),
                                " multi-token prediction layers (m); the model has ",
                                needs.mtp_num_layers));
  }
  const size_t first_m = all.find('m');
  if (first_m != absl::string_view::npos && all.find('t', first_m) != absl::string_view::npos) {
    return Invalid("must have every m after every t");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandPipelineLayout(absl::string_view layout) {
  std::string plain(layout);
  plain.erase(std::remove(plain.begin(), plain.end(), ','), plain.end());
  ASSIGN_OR_RETURN(const std::string groups_done, WriteOutGroups(plain));
  ASSIGN_OR_RETURN(const std::string letters, WriteOutLetters(groups_done));
  return std::vector<std::string>(absl::StrSplit(letters, '|'));
}

absl::StatusOr<LayerTable> AssignByLayout(absl::string_view layout, const LayoutNeeds& needs) {
  ASSIGN_OR_RETURN(const std::vector<std::string> stages, ExpandPipelineLayout(layout));
  const auto pp = static_cast<size_t>(needs.pp);
  if (stages.size() % pp != 0) {
    return Invalid(absl::StrCat(
        "has ", stages.size(),
        " stages; their number must be a multiple of pipeline_model_parallel_size=", pp));
  }
  RETURN_IF_ERROR(CheckLetters(absl::StrJoin(stages, ""), needs));
  const size_t num_chunks = stages.size() / pp;
  LayerTable table(pp, std::vector<ChunkLayers>(num_chunks));
  int64_t next_layer = 0;
  int num_mtp_stages = 0;
  for (size_t k = 0; k < stages.size(); ++k) {
    ChunkLayers& chunk = table[k % pp][k / pp];
    for (const char letter : stages[k]) {
      if (letter == 't') chunk.layers.push_back(next_layer++);
      if (letter == 'm') ++chunk.num_mtp_layers;
      chunk.embedding |= letter == 'E';
      chunk.loss |= letter == 'L';
    }
    if (chunk.num_mtp_layers == 0) continue;
    if (++num_mtp_stages > 1) return Invalid("must have every m in one stage");
    if (k / pp != num_chunks - 1) return Invalid("must have its m in a rank's last virtual stage");
  }
  return table;
}

}  // namespace muster
