#include "common/spec/pipeline_layout.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster {
namespace {

constexpr size_t kLongestLayout = 1 << 20;  // written out

// Appends `unit` as often as "*k" at `*next` says (once without it) and moves `*next` past it.
absl::Status AppendRepeated(absl::string_view layout, absl::string_view unit, size_t* next,
                            std::string* out) {
  int64_t times = 1;
  if (*next < layout.size() && layout[*next] == '*') {
    size_t end = *next + 1;
    while (end < layout.size() && std::isdigit(static_cast<unsigned char>(layout[end])) != 0) ++end;
    if (!absl::SimpleAtoi(layout.substr(*next + 1, end - *next - 1), &times)) {
      return absl::InvalidArgumentError("has a '*' without a number of repetitions after it");
    }
    *next = end;
  }
  if (times > static_cast<int64_t>(kLongestLayout) ||
      out->size() + unit.size() * static_cast<size_t>(times) > kLongestLayout) {
    return absl::InvalidArgumentError("is too long when written out");
  }
  for (int64_t i = 0; i < times; ++i) out->append(unit.data(), unit.size());
  return absl::OkStatus();
}

absl::Status ExpandLetters(absl::string_view text, std::string* out) {
  size_t next = 0;
  while (next < text.size()) {
    const absl::string_view letter = text.substr(next++, 1);
    if (letter == ",") continue;
    if (absl::string_view("EtmL|").find(letter) == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "has an unknown letter '", letter, "'; use E, t, L, '|', and x*k or (..)*k to repeat"));
    }
    if (absl::Status status = AppendRepeated(text, letter, &next, out); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandPipelineLayout(absl::string_view layout) {
  std::string letters;
  size_t next = 0;
  while (next < layout.size()) {
    const size_t open = std::min(layout.find('(', next), layout.size());
    if (absl::Status status = ExpandLetters(layout.substr(next, open - next), &letters);
        !status.ok()) {
      return status;
    }
    if (open == layout.size()) break;
    const size_t close = layout.find(')', open);
    if (close == absl::string_view::npos) {
      return absl::InvalidArgumentError("has a '(' that is not closed");
    }
    std::string group;
    if (absl::Status status = ExpandLetters(layout.substr(open + 1, close - open - 1), &group);
        !status.ok()) {
      return status;
    }
    next = close + 1;
    if (absl::Status status = AppendRepeated(layout, group, &next, &letters); !status.ok()) {
      return status;
    }
  }
  return std::vector<std::string>(absl::StrSplit(letters, '|'));
}

std::string PipelineLayoutProblem(absl::string_view layout, int64_t num_layers, int64_t pp) {
  const absl::StatusOr<std::vector<std::string>> stages = ExpandPipelineLayout(layout);
  if (!stages.ok()) return std::string(stages.status().message());
  if (static_cast<int64_t>(stages->size()) % pp != 0) {
    return absl::StrCat(
        "has ", stages->size(),
        " stages; their number must be a multiple of pipeline_model_parallel_size=", pp);
  }
  std::string all;
  for (const std::string& stage : *stages) all += stage;
  if (std::count(all.begin(), all.end(), 'E') != 1 || all.front() != 'E') {
    return "must have exactly one E, at its start";
  }
  if (std::count(all.begin(), all.end(), 'L') != 1 || all.back() != 'L') {
    return "must have exactly one L, at its end";
  }
  if (std::count(all.begin(), all.end(), 'm') != 0) {
    return "has an m, but the model has no multi-token prediction layers";
  }
  const int64_t layers = std::count(all.begin(), all.end(), 't');
  if (layers != num_layers) {
    return absl::StrCat("has ", layers, " layers (t); model.num_layers is ", num_layers);
  }
  return "";
}

}  // namespace muster
