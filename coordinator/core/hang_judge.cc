#include "coordinator/core/hang_judge.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/job_waits.h"

namespace muster {
namespace {

constexpr size_t kMaxGroups = 8;  // of an arrival table

using Reports = std::vector<std::optional<ProbeReport>>;
using GroupKey = std::pair<std::string, std::vector<int>>;  // name, members

bool IsTransfer(const OpArrival& op) {
  return absl::StartsWith(op.operation, "send") || absl::StartsWith(op.operation, "recv");
}

bool Waits(const ProbeReport& report) {
  if (!report.reply.has_value()) return false;
  return std::any_of(report.reply->ops.begin(), report.reply->ops.end(),
                     [](const OpArrival& op) { return !op.done; });
}

std::string State(const ProbeReport& report) {
  return report.process_state.empty() ? "" : absl::StrCat(" (state ", report.process_state, ")");
}

bool Stopped(const ProbeReport& report) { return report.running && report.process_state == "T"; }

// One group as its members see it.
struct Group {
  std::map<int, const OpArrival*> members;  // those that have named it
  int64_t newest = 0;                       // sequence that some member waits in; 0: none
  std::string operation;
  bool transfer = false;
  double age_ms = 0;  // the longest wait
};

std::map<GroupKey, Group> GroupsOf(const Reports& reports) {
  std::map<GroupKey, Group> groups;
  for (int rank = 0; rank < static_cast<int>(reports.size()); ++rank) {
    if (!reports[rank].has_value() || !reports[rank]->reply.has_value()) continue;
    for (const OpArrival& op : reports[rank]->reply->ops) {
      Group& group = groups[{op.group, op.ranks}];
      group.members[rank] = &op;
      if (op.done) continue;
      group.age_ms = std::max(group.age_ms, op.age_ms);
      if (op.sequence < group.newest) continue;
      group.newest = op.sequence;
      group.operation = op.operation;
      group.transfer = IsTransfer(op);
    }
  }
  for (auto it = groups.begin(); it != groups.end();) {
    const bool waits = std::any_of(it->second.members.begin(), it->second.members.end(),
                                   [](const auto& member) { return !member.second->done; });
    it = waits ? std::next(it) : groups.erase(it);
  }
  return groups;
}

// Who of a group is missing in the operation that its members wait in.
std::vector<int> Missing(const GroupKey& key, const Group& group, const Reports& reports) {
  std::vector<int> missing;
  for (const int rank : key.second) {
    if (rank < 0 || rank >= static_cast<int>(reports.size())) continue;
    const auto member = group.members.find(rank);
    if (member != group.members.end()) {
      if (!member->second->done) continue;
      if (!group.transfer && member->second->sequence >= group.newest) continue;
    }
    missing.push_back(rank);
  }
  return missing;
}

// What somebody waits in: the same in both probes, or it is no hang.
struct Awaited {
  std::string group, operation;
  int64_t sequence = 0;
  bool transfer = false;
  std::vector<int> waiting;
  double age_ms = 0;
};

// Of each rank that does not wait itself and that others wait for: where.
std::map<int, Awaited> AwaitedRanks(const Reports& reports) {
  std::map<int, Awaited> awaited;
  for (const auto& [key, group] : GroupsOf(reports)) {
    for (const int rank : Missing(key, group, reports)) {
      if (reports[rank].has_value() && Waits(*reports[rank])) continue;
      if (awaited.contains(rank) && awaited.at(rank).age_ms >= group.age_ms) continue;
      Awaited entry{.group = key.first,
                    .operation = group.operation,
                    .sequence = group.newest,
                    .transfer = group.transfer,
                    .age_ms = group.age_ms};
      for (const auto& [member, op] : group.members) {
        if (!op->done) entry.waiting.push_back(member);
      }
      awaited[rank] = std::move(entry);
    }
  }
  return awaited;
}

std::string Ranks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", CompressRanks(ranks));
}

std::string Wait(double age_ms) { return ShortDuration(absl::Milliseconds(age_ms)); }

std::string Table(const Reports& reports) {
  std::vector<std::string> lines;
  std::vector<std::pair<GroupKey, Group>> groups;
  for (auto& [key, group] : GroupsOf(reports)) groups.emplace_back(key, group);
  // The oldest wait is the nearest to the cause.
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.second.age_ms > b.second.age_ms; });
  for (const auto& [key, group] : groups) {
    if (lines.size() == kMaxGroups) {
      lines.push_back(absl::StrCat("and ", groups.size() - kMaxGroups, " more groups"));
      break;
    }
    std::vector<int> waiting;
    for (const auto& [rank, op] : group.members) {
      if (!op->done) waiting.push_back(rank);
    }
    const std::vector<int> missing = Missing(key, group, reports);
    std::string line =
        absl::StrCat(key.first, " (", Ranks(key.second), ") ", group.operation, ", number ",
                     group.newest, ": ", Ranks(waiting), waiting.size() == 1 ? " waits" : " wait",
                     " for ", Wait(group.age_ms), "; missing: ");
    if (missing.empty()) absl::StrAppend(&line, "nobody");
    for (size_t i = 0; i < missing.size() && i < kMaxGroups; ++i) {
      const auto member = group.members.find(missing[i]);
      absl::StrAppend(&line, i == 0 ? "" : ", ", "rank ", missing[i]);
      if (member != group.members.end()) {
        absl::StrAppend(&line, " (at number ", member->second->sequence, ", done)");
      } else {
        absl::StrAppend(&line, " (nothing of it)");
      }
    }
    if (missing.size() > kMaxGroups) {
      absl::StrAppend(&line, ", and ", missing.size() - kMaxGroups, " more");
    }
    lines.push_back(std::move(line));
  }
  return absl::StrJoin(lines, "; ");
}

int64_t HighestIteration(const Reports& reports) {
  int64_t highest = 0;
  for (const auto& report : reports) {
    if (report.has_value() && report->reply.has_value()) {
      highest = std::max(highest, report->reply->iteration);
    }
  }
  return highest;
}

class Judge {
 public:
  Judge(const HangProbe& first, const HangProbe& second, const HangOptions& options)
      : first_(first.reports), second_(second.reports), options_(options) {}

  HangVerdict Decide() {
    verdict_.iteration = std::max(HighestIteration(first_), HighestIteration(second_));
    verdict_.arrivals = Table(second_);
    if (Advanced()) return Say(HangVerdict::Kind::kProgress);
    for (int rank = 0; rank < NumRanks(); ++rank) AccuseAlone(rank);
    if (!verdict_.culprits.empty()) return Say(HangVerdict::Kind::kHang);
    if (!unheard_.empty()) {
      verdict_.summary = absl::StrCat(Ranks(unheard_), unheard_.size() == 1 ? " has" : " have",
                                      " an agent that does not answer");
      return verdict_;
    }
    if (!ending_.empty() || !options_.judge_arrivals) {
      verdict_.summary = ending_.empty()
                             ? "all trainers answer"
                             : absl::StrCat("the trainer of ", Ranks(ending_), " has ended");
      return verdict_;
    }
    return JudgeArrivals();
  }

 private:
  int NumRanks() const { return static_cast<int>(std::min(first_.size(), second_.size())); }

  bool Advanced() {
    for (int rank = 0; rank < NumRanks(); ++rank) {
      const auto& now = second_[rank];
      if (!now.has_value() || !now->reply.has_value()) continue;
      const auto& before = first_[rank];
      const bool rose = before.has_value() && before->reply.has_value() &&
                        now->reply->iteration > before->reply->iteration;
      if (!rose && now->reply->iteration <= options_.committed) continue;
      verdict_.summary = absl::StrCat("rank ", rank, " is at iteration ", now->reply->iteration);
      return true;
    }
    return false;
  }

  bool Computes(int rank) const {
    const ProbeReport &before = *first_[rank], &now = *second_[rank];
    if (before.reply.has_value() && now.reply.has_value() &&
        now.reply->thread_cpu_ms - before.reply->thread_cpu_ms >=
            absl::ToDoubleMilliseconds(options_.busy_thread)) {
      return true;
    }
    return options_.count_process &&
           now.cpu_ms - before.cpu_ms >= absl::ToDoubleMilliseconds(options_.busy_process);
  }

  // 2: what needs no other rank's word.
  void AccuseAlone(int rank) {
    const bool needed = !options_.may_be_silent.contains(rank);
    if (!first_[rank].has_value() || !second_[rank].has_value()) {
      if (needed) unheard_.push_back(rank);
      return;
    }
    const ProbeReport &before = *first_[rank], &now = *second_[rank];
    if (!now.running || !before.running) {
      if (needed) ending_.push_back(rank);
      return;
    }
    if (Stopped(before) && Stopped(now)) {
      verdict_.culprits.push_back({rank, "is stopped (state T)"});
      return;
    }
    if (before.reply.has_value() || now.reply.has_value() || Stopped(now)) return;
    if (options_.may_be_silent.contains(rank)) return;
    // A debugger holds it: a person's doing.
    if (now.process_state == "t") return;
    if (Computes(rank)) return;
    verdict_.culprits.push_back({rank, absl::StrCat("does not answer", State(now))});
  }

  HangVerdict JudgeArrivals() {
    const std::map<int, Awaited> before = AwaitedRanks(first_);
    const std::map<int, Awaited> now = AwaitedRanks(second_);
    std::vector<int> slow;
    for (const auto& [rank, awaited] : now) {
      const auto same = before.find(rank);
      if (same == before.end() || same->second.group != awaited.group ||
          same->second.sequence != awaited.sequence) {
        continue;
      }
      // One that has answered once only is short of time; state D is the kernel, mostly a disk.
      if (Computes(rank) || !first_[rank]->reply.has_value() || !second_[rank]->reply.has_value() ||
          second_[rank]->process_state == "D") {
        slow.push_back(rank);
        continue;
      }
      verdict_.culprits.push_back({rank, HowItIsMissing(awaited)});
    }
    // What a slow one will still do may free those that seem to hang.
    if (!slow.empty()) {
      verdict_.culprits.clear();
      verdict_.slow = slow;
      verdict_.summary = absl::StrCat(Ranks(slow), slow.size() == 1 ? " computes" : " compute",
                                      ", others wait: slow, not hung");
      return Say(HangVerdict::Kind::kSlow);
    }
    if (!verdict_.culprits.empty()) return Say(HangVerdict::Kind::kHang);
    if (NumRanks() == 1 && !Waits(*second_[0])) {
      if (Computes(0) || second_[0]->process_state == "D") {
        verdict_.slow = {0};
        verdict_.summary = "rank 0 computes: slow, not hung";
        return Say(HangVerdict::Kind::kSlow);
      }
      verdict_.culprits.push_back(
          {0, absl::StrCat("makes no progress and does not compute", State(*second_[0]))});
      return Say(HangVerdict::Kind::kHang);
    }
    for (int rank = 0; rank < NumRanks(); ++rank) {
      if (Computes(rank) && !Waits(*second_[rank])) slow.push_back(rank);
    }
    if (!slow.empty()) {
      verdict_.summary = absl::StrCat(Ranks(slow), slow.size() == 1 ? " computes" : " compute",
                                      ": slow, not hung");
      return Say(HangVerdict::Kind::kSlow);
    }
    verdict_.summary =
        "all trainers answer and nobody is missing: a deadlock, the network or a device";
    return verdict_;
  }

  static std::string HowItIsMissing(const Awaited& awaited) {
    const std::string wait =
        absl::StrCat(Ranks(awaited.waiting), awaited.waiting.size() == 1 ? " waits" : " wait",
                     " there for ", Wait(awaited.age_ms));
    if (awaited.transfer) {
      return absl::StrCat("does not take part in ", awaited.group, "'s ", awaited.operation, ": ",
                          wait);
    }
    return absl::StrCat("has not arrived in ", awaited.group, "'s ", awaited.operation, " (number ",
                        awaited.sequence, "): ", wait);
  }

  HangVerdict Say(HangVerdict::Kind kind) {
    verdict_.kind = kind;
    if (kind == HangVerdict::Kind::kHang) {
      std::vector<std::string> parts;
      for (const HangVerdict::Culprit& culprit : verdict_.culprits) {
        parts.push_back(absl::StrCat("rank ", culprit.rank, " ", culprit.reason));
      }
      verdict_.summary = absl::StrJoin(parts, "; ");
    }
    return std::move(verdict_);
  }

  const Reports& first_;
  const Reports& second_;
  const HangOptions options_;
  HangVerdict verdict_;
  std::vector<int> unheard_, ending_;
};

}  // namespace

HangVerdict JudgeHang(const HangProbe& first, const HangProbe& second, const HangOptions& options) {
  return Judge(first, second, options).Decide();
}

}  // namespace muster
