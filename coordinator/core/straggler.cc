#include "coordinator/core/straggler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"

namespace muster {
namespace {

enum class OfTwo { kLower, kUpper };

// Of all values but `own`, which is one of them. 0: there are no others.
double MedianOfOthers(const std::vector<double>& sorted, double own, OfTwo of_two = OfTwo::kLower) {
  if (sorted.size() < 2) return 0;
  const size_t num_others = sorted.size() - 1;
  const size_t position = std::lower_bound(sorted.begin(), sorted.end(), own) - sorted.begin();
  const size_t middle = (num_others - (of_two == OfTwo::kLower ? 1 : 0)) / 2;
  return sorted[position <= middle ? middle + 1 : middle];
}

}  // namespace

const char* StragglerCauseName(StragglerCause cause) {
  switch (cause) {
    case StragglerCause::kCompute:
      return "compute";
    case StragglerCause::kData:
      return "data";
    case StragglerCause::kCommunicationWait:
      return "communication wait";
  }
  return "?";
}

void StragglerWatch::Begin(std::vector<int> stage_of_rank) {
  stages_ = std::move(stage_of_rank);
  ranks_.assign(stages_.size(), {});
  any_fresh_ = false;
}

void StragglerWatch::Take(int rank, const RankTimesMessage& times, absl::Time now) {
  if (rank < 0 || rank >= static_cast<int>(ranks_.size()) || times.steps < 1) return;
  ranks_[rank].times = times;
  ranks_[rank].at = now;
  ranks_[rank].fresh = any_fresh_ = true;
}

std::optional<StragglerWatch::Finding> StragglerWatch::SlowByItself(const RankTimesMessage& times,
                                                                    const Peers& peers) const {
  const double min_excess = absl::ToDoubleMilliseconds(options_.min_excess);
  const double others_wait = MedianOfOthers(peers.wait, times.communication_wait_ms);
  const auto check = [&](StragglerCause cause, double own,
                         const std::vector<double>& all) -> std::optional<Finding> {
    const double median = MedianOfOthers(all, own);
    const double excess = own - median;
    if (own <= options_.factor * median || excess < min_excess) return std::nullopt;
    if (others_wait < excess / 2) return std::nullopt;  // nobody waits for it
    return Finding{cause, absl::StrFormat("%s %.1f ms a step, median of the others %.1f ms; they "
                                          "wait %.1f ms in communication",
                                          StragglerCauseName(cause), own, median, others_wait)};
  };
  if (auto found = check(StragglerCause::kCompute, times.compute_ms, peers.compute)) return found;
  return check(StragglerCause::kData, times.data_ms, peers.data);
}

std::optional<StragglerWatch::Finding> StragglerWatch::SlowByItsLink(const RankTimesMessage& times,
                                                                     const Peers& peers) const {
  const double own = times.communication_wait_ms;
  // One that computes a little longer than all others waits for nobody, and they for it.
  const double median = MedianOfOthers(peers.wait, own, OfTwo::kUpper);
  const double min_excess = absl::ToDoubleMilliseconds(options_.min_excess);
  // With one other there is no telling which of the two is as it should be.
  if (peers.wait.size() < 3 || own <= options_.factor * median || own - median < min_excess) {
    return std::nullopt;
  }
  return Finding{StragglerCause::kCommunicationWait,
                 absl::StrFormat("communication wait %.1f ms a step, median of the others %.1f ms, "
                                 "and nobody computes or reads longer",
                                 own, median)};
}

std::vector<StragglerNews> StragglerWatch::Judge(absl::Time now) {
  if (!any_fresh_ || now - judged_at_ < options_.judge_interval) return {};
  judged_at_ = now;
  any_fresh_ = false;
  Peers all;
  std::map<int, Peers> by_stage;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!Known(ranks_[r], now)) continue;
    const RankTimesMessage& times = ranks_[r].times;
    for (Peers* peers : {&all, &by_stage[stages_[r]]}) {
      peers->compute.push_back(times.compute_ms);
      peers->data.push_back(times.data_ms);
      peers->wait.push_back(times.communication_wait_ms);
    }
  }
  const auto sort = [](Peers* peers) {
    for (std::vector<double>* v : {&peers->compute, &peers->data, &peers->wait}) {
      std::sort(v->begin(), v->end());
    }
  };
  sort(&all);
  for (auto& [stage, peers] : by_stage) sort(&peers);
  const auto peers_of = [&](size_t r) -> const Peers& {
    const Peers& stage = by_stage.at(stages_[r]);
    return stage.compute.size() > 1 ? stage : all;
  };

  std::map<size_t, std::optional<Finding>> findings;  // of those that are known
  bool any = false;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!Known(ranks_[r], now)) continue;
    findings[r] = SlowByItself(ranks_[r].times, peers_of(r));
    any = any || findings[r].has_value();
  }
  if (!any) {
    for (auto& [r, finding] : findings) finding = SlowByItsLink(ranks_[r].times, peers_of(r));
  }

  std::vector<StragglerNews> news;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    const auto found = findings.find(r);
    if (found == findings.end()) {  // it says nothing any more
      if (rank.slow.has_value()) {
        news.push_back({static_cast<int>(r), true, *rank.slow, "it reports no times any more"});
      }
      rank = {};
      continue;
    }
    if (!std::exchange(rank.fresh, false)) continue;
    const std::optional<Finding>& finding = found->second;
    rank.streak = finding.has_value() != rank.slow.has_value() ? rank.streak + 1 : 0;
    if (rank.streak < options_.reports_to_start) continue;
    rank.streak = 0;
    if (finding.has_value()) {
      rank.slow = finding->cause;
      news.push_back({static_cast<int>(r), false, finding->cause, finding->text});
    } else {
      news.push_back({static_cast<int>(r), true, *rank.slow, "as fast as the others again"});
      rank.slow.reset();
    }
  }
  return news;
}

std::map<int, StragglerCause> StragglerWatch::slow() const {
  std::map<int, StragglerCause> slow;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].slow.has_value()) slow[static_cast<int>(r)] = *ranks_[r].slow;
  }
  return slow;
}

}  // namespace muster
