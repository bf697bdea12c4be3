#include "worker/agent/oom_kills.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

std::string Content(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Inside a container the group's own files may stand at the mount's root.
std::string FirstThatCounts(const std::vector<std::string>& paths) {
  const auto found = std::find_if(paths.begin(), paths.end(), [](const std::string& path) {
    return ParseOomKills(Content(path)).has_value();
  });
  return found == paths.end() ? "" : *found;
}

}  // namespace

std::optional<int64_t> ParseOomKills(absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    int64_t count = 0;
    if (absl::ConsumePrefix(&line, "oom_kill ") && absl::SimpleAtoi(line, &count)) return count;
  }
  return std::nullopt;
}

std::string OomFile(absl::string_view text, const std::string& root) {
  // "ID:CONTROLLERS:PATH"; version 2 has no controllers.
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    const bool is_memory =
        std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
    std::string file;
    if (is_memory) {
      file = FirstThatCounts({absl::StrCat(root, "/memory", parts[2], "/memory.oom_control"),
                              absl::StrCat(root, "/memory/memory.oom_control")});
    } else if (parts[1].empty()) {
      file = FirstThatCounts(
          {absl::StrCat(root, parts[2], "/memory.events"), absl::StrCat(root, "/memory.events")});
    }
    if (!file.empty()) return file;
  }
  return "";
}

std::string OomFileHere() { return OomFile(Content("/proc/self/cgroup"), "/sys/fs/cgroup"); }

OomKills::OomKills(std::string file) : file_(std::move(file)) {
  if (!file_.empty()) taken_ = ParseOomKills(Content(file_)).value_or(0);
}

bool OomKills::TakeOne() {
  if (file_.empty()) return false;
  const int64_t count = ParseOomKills(Content(file_)).value_or(0);
  MutexLock lock(&mu_);
  if (count <= taken_) return false;
  ++taken_;
  return true;
}

}  // namespace muster
