#include "coordinator/core/job_waits.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

constexpr size_t kMaxNames = 4;

struct Group {
  absl::string_view node, phase, detail;
  bool same_detail = true;
  int stage = 0;
  RankSet ranks;
  std::vector<absl::string_view> workers;
  absl::Time last_sign = absl::InfiniteFuture();  // the oldest of the group
  bool silent = false;
};

std::vector<Group> GroupsOf(const std::vector<MissingRank>& missing, absl::Time now,
                            absl::Duration silent_after) {
  std::vector<Group> groups;
  std::map<std::pair<absl::string_view, absl::string_view>, size_t> index;  // node, phase
  for (const MissingRank& rank : missing) {
    const auto [found, is_new] = index.try_emplace({rank.node, rank.phase}, groups.size());
    if (is_new) {
      groups.push_back(
          {.node = rank.node, .phase = rank.phase, .detail = rank.detail, .stage = rank.stage});
    }
    Group& group = groups[found->second];
    group.same_detail = group.same_detail && group.detail == rank.detail;
    group.stage = std::min(group.stage, rank.stage);
    group.ranks.Add(rank.rank);
    group.workers.push_back(rank.worker);
    group.last_sign = std::min(group.last_sign, rank.last_sign);
  }
  for (Group& group : groups) group.silent = now - group.last_sign > silent_after;
  std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    const auto key = [](const Group& g) {
      return std::tuple(!g.silent, g.silent ? g.last_sign : absl::InfinitePast(), g.stage,
                        g.ranks.ranges().begin()->first);
    };
    return key(a) < key(b);
  });
  return groups;
}

std::string TextOf(const Group& group, absl::Time now) {
  const bool one = group.ranks.size() == 1;
  std::string sign = "no sign of life yet";
  if (group.last_sign != absl::InfinitePast()) {
    sign = absl::StrCat("last sign of life ", ShortDuration(now - group.last_sign), " ago");
  }
  return absl::StrCat(one ? "rank " : "ranks ", group.ranks.Text(), " (node ", group.node, ", ",
                      one ? "worker " : "workers ", CompressNames(group.workers),
                      "): ", group.phase, group.same_detail && !group.detail.empty() ? ", " : "",
                      group.same_detail ? group.detail : "", ", ", sign);
}

}  // namespace

MissingReport DescribeMissing(const std::vector<MissingRank>& missing, absl::Time now,
                              absl::Duration silent_after, int max_groups) {
  if (missing.empty()) return {};
  const std::vector<Group> groups = GroupsOf(missing, now, silent_after);
  std::vector<std::string> parts;
  RankSet others;
  for (size_t i = 0; i < groups.size(); ++i) {
    // A single group more is as short as the words about it.
    if (i < static_cast<size_t>(max_groups)) {
      parts.push_back(TextOf(groups[i], now));
      continue;
    }
    groups[i].ranks.ForEach([&](int rank) {
      others.Add(rank);
      return true;
    });
  }
  if (!others.empty()) {
    parts.push_back(absl::StrCat("and ", others.size(), " more ranks (", others.Text(), ")"));
  }
  return {.text = absl::StrJoin(parts, "; "),
          .first_rank = groups.front().ranks.ranges().begin()->first};
}

std::string CompressNames(const std::vector<absl::string_view>& names) {
  if (names.empty()) return "";
  // The part before the last number, and the numbers behind it.
  absl::string_view stem;
  RankSet numbers;
  for (size_t i = 0; i < names.size(); ++i) {
    size_t end = names[i].size();
    while (end > 0 && absl::ascii_isdigit(names[i][end - 1])) --end;
    const absl::string_view digits = names[i].substr(end);
    int number = 0;
    const bool good = !digits.empty() && absl::SimpleAtoi(digits, &number) &&
                      absl::StrCat(number) == digits && (i == 0 || names[i].substr(0, end) == stem);
    if (!good || names.size() == 1) {
      std::vector<absl::string_view> first(names.begin(),
                                           names.begin() + std::min(names.size(), kMaxNames));
      return absl::StrCat(absl::StrJoin(first, ", "), names.size() > kMaxNames ? ", ..." : "");
    }
    stem = names[i].substr(0, end);
    numbers.Add(number);
  }
  return absl::StrCat(stem, numbers.Text());
}

std::string ShortDuration(absl::Duration duration) {
  const absl::Duration unit =
      duration < absl::Seconds(10) ? absl::Milliseconds(100) : absl::Seconds(1);
  return absl::FormatDuration(absl::Trunc(std::max(duration, absl::ZeroDuration()), unit));
}

}  // namespace muster
