#include "cli/workers_table.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cli/output.h"
#include "common/rpc/convert.h"

namespace muster {
namespace {

constexpr size_t kMaxNodeRanges = 4;
constexpr size_t kMaxRows = 16;

std::string StateOf(const v1::WorkerStatus& worker) {
  std::string state(absl::StripPrefix(v1::WorkerState_Name(worker.state()), "WORKER_STATE_"));
  if (worker.cordoned()) state += ", cordoned";
  if (worker.draining()) state += ", draining";
  if (!worker.quarantined().empty()) state += ", quarantined";
  return state;
}

// Why it is not alive, and the evidence against its device.
std::string ReasonOf(const v1::WorkerStatus& worker) {
  return absl::StrCat(worker.reason(),
                      worker.reason().empty() || worker.quarantined().empty() ? "" : "; ",
                      worker.quarantined());
}

double Silence(const v1::WorkerStatus& worker) {
  return absl::ToDoubleSeconds(FromProto(worker.since_last_heartbeat()));
}

// A name's beginning, the width of the number at its end, and that number (-1: none).
std::tuple<std::string, size_t, int64_t> SplitNumber(const std::string& name) {
  size_t start = name.size();
  while (start > 0 && std::isdigit(static_cast<unsigned char>(name[start - 1])) != 0) --start;
  int64_t number = -1;
  if (!absl::SimpleAtoi(name.substr(start), &number)) return {name, 0, -1};
  // "7" and "12" are of one series; "007" and "012" are, too, but of another.
  const size_t width = name[start] == '0' && name.size() - start > 1 ? name.size() - start : 0;
  return {name.substr(0, start), width, number};
}

}  // namespace

std::string CompressNames(std::vector<std::string> names, size_t most) {
  std::map<std::pair<std::string, size_t>, std::set<int64_t>> series;
  std::map<std::string, std::set<size_t>> padded;  // widths of the padded numbers of a beginning
  for (const std::string& name : names) {
    const auto [begin, width, number] = SplitNumber(name);
    if (number >= 0 && width > 0) padded[begin].insert(width);
  }
  for (const std::string& name : names) {
    auto [begin, width, number] = SplitNumber(name);
    // "100" after "099" goes on in the padded series.
    const size_t length = name.size() - begin.size();
    if (number >= 0 && width == 0 && padded[begin].contains(length)) width = length;
    series[{begin, width}].insert(number);
  }
  std::vector<std::string> parts;
  for (const auto& [key, numbers] : series) {
    const auto text = [width = static_cast<int>(key.second)](int64_t number) {
      return absl::StrFormat("%0*d", width, number);
    };
    for (auto first = numbers.begin(); first != numbers.end();) {
      auto last = first;
      while (std::next(last) != numbers.end() && *std::next(last) == *last + 1) ++last;
      if (*first < 0) {
        parts.push_back(key.first);
        last = first;
      } else if (first == last) {
        parts.push_back(key.first + text(*first));
      } else {
        parts.push_back(absl::StrCat(key.first, "[", text(*first), "-", text(*last), "]"));
      }
      first = std::next(last);
    }
  }
  const size_t hidden = parts.size() > most ? parts.size() - most : 0;
  parts.resize(parts.size() - hidden);
  return absl::StrCat(absl::StrJoin(parts, ", "),
                      hidden > 0 ? absl::StrCat(" and ", hidden, " more") : "");
}

std::string WorkersTable(const v1::ListWorkersResponse& workers) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::WorkerStatus& worker : workers.workers()) {
    rows.push_back({worker.description().name(), worker.node(), worker.description().device(),
                    worker.address(), StateOf(worker),
                    worker.job_id().empty() ? "idle"
                    : worker.rank() < 0     ? absl::StrCat(worker.job_id(), " spare")
                                            : absl::StrCat(worker.job_id(), " rank ", worker.rank(),
                                                           " ", worker.phase()),
                    FormatSeconds(Silence(worker)), ReasonOf(worker)});
  }
  return FormatTable({"WORKER", "NODE", "DEVICE", "ADDRESS", "STATE", "WORK", "HEARD", "REASON"},
                     rows);
}

std::string WorkersSummary(const v1::ListWorkersResponse& workers) {
  struct Group {
    int64_t count = 0;
    double longest_silence = 0;
    std::set<std::string> nodes;
  };
  std::map<std::pair<std::string, std::string>, Group> groups;
  std::set<std::string> nodes;
  for (const v1::WorkerStatus& worker : workers.workers()) {
    const std::string work = worker.job_id().empty() ? "idle"
                             : worker.rank() < 0
                                 ? absl::StrCat(worker.job_id(), " spare")
                                 : absl::StrCat(worker.job_id(), " ", worker.phase());
    Group& group = groups[{StateOf(worker), work}];
    ++group.count;
    group.longest_silence = std::max(group.longest_silence, Silence(worker));
    group.nodes.insert(worker.node());
    nodes.insert(worker.node());
  }
  // The few that stand out come first: they are what one looks for.
  std::vector<std::pair<std::pair<std::string, std::string>, Group>> sorted(groups.begin(),
                                                                            groups.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.count < b.second.count; });
  std::vector<std::vector<std::string>> rows;
  for (const auto& [key, group] : sorted) {
    if (rows.size() == kMaxRows) break;
    rows.push_back({key.first, key.second, absl::StrCat(group.count),
                    FormatSeconds(group.longest_silence),
                    CompressNames({group.nodes.begin(), group.nodes.end()}, kMaxNodeRanges)});
  }
  std::string text =
      absl::StrCat(workers.workers_size(), " workers on ", nodes.size(),
                   " nodes; --all lists "
                   "every one\n\n",
                   FormatTable({"STATE", "WORK", "WORKERS", "HEARD", "NODES"}, rows));
  if (sorted.size() > rows.size()) {
    absl::StrAppend(&text, "and ", sorted.size() - rows.size(), " more kinds\n");
  }
  return text;
}

}  // namespace muster
