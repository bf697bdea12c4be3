#include "common/spec/nearest_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace muster {
namespace {

constexpr size_t kLongestName = 128;  // longer ones are not a slip of the fingers

std::string Normal(absl::string_view name) {
  std::string normal = absl::AsciiStrToLower(name.substr(0, kLongestName));
  std::replace(normal.begin(), normal.end(), '-', '_');
  return normal;
}

}  // namespace

int EditDistance(absl::string_view a_text, absl::string_view b_text) {
  const std::string a = Normal(a_text), b = Normal(b_text);
  // Rows i-2, i-1 and i of the table of distances between prefixes.
  std::vector<int> older, old(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) old[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({old[j] + 1, row[j - 1] + 1, old[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], older[j - 2] + 1);
      }
    }
    older = old;
    old = row;
  }
  return old[b.size()];
}

std::string NearestName(absl::string_view given, const std::vector<std::string>& known) {
  std::string nearest;
  int best = std::max<int>(2, static_cast<int>(given.size()) / 3) + 1;
  for (const std::string& name : known) {
    const int distance = EditDistance(given, name);
    // Half of a short name must be right, or everything would be near.
    if (distance < best && 2 * distance <= static_cast<int>(std::max(name.size(), given.size()))) {
      best = distance;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace muster
