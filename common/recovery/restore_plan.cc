#include "common/recovery/restore_plan.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

using Kind = HeldState::Kind;
using Source = RestoreDecision::Source;

// The state after one agreement: pieces with the same key add up.
struct Key {
  int64_t iteration = 0, epoch = 0;
  std::string layout;
  auto Tie() const { return std::tie(iteration, epoch, layout); }
  bool operator<(const Key& other) const { return Tie() < other.Tie(); }
};

// One state in a member's hands, as far as it could be used for a key.
struct Holding {
  size_t member = 0;
  int index = 0;  // in `held`
  bool finishes = false;
};

struct Candidate {
  int64_t num_pieces = 0;
  std::map<int64_t, Kind> best;   // by piece: the best kind that anybody holds it as
  std::set<int64_t> own, buddys;  // pieces that snapshots hold
  std::vector<Holding> holdings;  // by member, then by kind

  bool covered() const { return static_cast<int64_t>(best.size()) == num_pieces; }
  // How many snapshots of every piece there are: own and a buddy's, on another node (2), one of
  // them (1), or not even that.
  int snapshots() const {
    int least = 2;
    for (int64_t piece = 0; piece < num_pieces; ++piece) {
      least = std::min(least, static_cast<int>(own.count(piece) + buddys.count(piece)));
    }
    return least;
  }
};

using Candidates = std::map<Key, Candidate>;
using AgreedResults = std::map<std::pair<int64_t, int64_t>, AgreementVector>;  // iteration, epoch

absl::StatusOr<AgreedResults> CollectResults(const std::vector<MemberOffer>& offers) {
  AgreedResults results;
  for (size_t m = 0; m < offers.size(); ++m) {
    const MemberOffer& offer = offers[m];
    if (!offer.agreed.has_value()) continue;
    const auto [known, is_new] =
        results.try_emplace({offer.agreed_iteration, offer.agreed_epoch}, *offer.agreed);
    if (!is_new && known->second != *offer.agreed) {
      return absl::InvalidArgumentError(
          absl::StrCat("member ", m, " knows another result of step ", offer.agreed_iteration,
                       "'s agreement in epoch ", offer.agreed_epoch, " than a member before it"));
    }
  }
  return results;
}

absl::Status CheckHeld(const HeldState& held, size_t member) {
  const bool in_range = std::all_of(held.pieces.begin(), held.pieces.end(), [&](int64_t piece) {
    return piece >= 0 && piece < held.num_pieces;
  });
  if (in_range && held.iteration >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("member ", member, " holds pieces outside of the ",
                                                 held.num_pieces, " of layout ", held.layout,
                                                 ", or of iteration ", held.iteration));
}

absl::Status Add(const HeldState& held, Key key, Holding holding, Candidates& candidates) {
  Candidate& candidate = candidates[std::move(key)];
  if (candidate.holdings.empty()) candidate.num_pieces = held.num_pieces;
  if (candidate.num_pieces != held.num_pieces) {
    return absl::InvalidArgumentError(absl::StrCat("member ", holding.member, " counts ",
                                                   held.num_pieces, " pieces of layout ",
                                                   held.layout, ", others ", candidate.num_pieces));
  }
  candidate.holdings.push_back(holding);
  for (const int64_t piece : held.pieces) {
    const auto [best, is_new] = candidate.best.try_emplace(piece, held.kind);
    if (!is_new) best->second = std::min(best->second, held.kind);
    if (held.kind == Kind::kOwnSnapshot) candidate.own.insert(piece);
    if (held.kind == Kind::kBuddySnapshot) candidate.buddys.insert(piece);
  }
  return absl::OkStatus();
}

// The result of the agreement that `offer`'s prepared step waits for.
const AgreementVector* ResultFor(const MemberOffer& offer, const HeldState& live,
                                 const AgreedResults& results) {
  if (!offer.prepared) return nullptr;
  const auto it = results.find({live.iteration + 1, offer.prepared_epoch});
  return it == results.end() ? nullptr : &it->second;
}

absl::StatusOr<Candidates> CollectCandidates(const std::vector<MemberOffer>& offers,
                                             const AgreedResults& results) {
  Candidates candidates;
  for (size_t m = 0; m < offers.size(); ++m) {
    const MemberOffer& offer = offers[m];
    std::vector<int> by_kind;
    for (size_t i = 0; i < offer.held.size(); ++i) by_kind.push_back(static_cast<int>(i));
    std::stable_sort(by_kind.begin(), by_kind.end(),
                     [&](int a, int b) { return offer.held[a].kind < offer.held[b].kind; });
    for (const int i : by_kind) {
      const HeldState& held = offer.held[i];
      RETURN_IF_ERROR(CheckHeld(held, m));
      RETURN_IF_ERROR(Add(held, {held.iteration, held.epoch, held.layout},
                          {.member = m, .index = i, .finishes = false}, candidates));
      if (held.kind != Kind::kLive || ResultFor(offer, held, results) == nullptr) continue;
      RETURN_IF_ERROR(Add(held, {held.iteration + 1, offer.prepared_epoch, held.layout},
                          {.member = m, .index = i, .finishes = true}, candidates));
    }
  }
  return candidates;
}

bool Satisfies(const HeldState& held, const MemberOffer& offer) {
  return !offer.needs.empty() && held.layout == offer.layout &&
         std::includes(held.pieces.begin(), held.pieces.end(), offer.needs.begin(),
                       offer.needs.end());
}

int64_t NumKept(const Candidate& candidate, const std::vector<MemberOffer>& offers) {
  std::vector<bool> keeps(offers.size());
  for (const Holding& holding : candidate.holdings) {
    const MemberOffer& offer = offers[holding.member];
    if (Satisfies(offer.held[holding.index], offer)) keeps[holding.member] = true;
  }
  return std::count(keeps.begin(), keeps.end(), true);
}

// The newest that is covered; of one iteration the one that moves least, then of the newest epoch.
const Candidates::value_type* Choose(const Candidates& candidates,
                                     const std::vector<MemberOffer>& offers) {
  const Candidates::value_type* chosen = nullptr;
  int64_t kept = 0;
  for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {
    if (chosen != nullptr && it->first.iteration < chosen->first.iteration) break;
    if (!it->second.covered()) continue;
    const int64_t keeps = NumKept(it->second, offers);
    if (chosen != nullptr && keeps <= kept) continue;
    chosen = &*it;
    kept = keeps;
  }
  return chosen;
}

// The newest generation that snapshots cover at least `times`; -1: none.
int64_t NewestCovered(const Candidates& candidates, int64_t not_after, int times) {
  for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {
    if (it->first.iteration <= not_after && it->second.snapshots() >= times)
      return it->first.iteration;
  }
  return -1;
}

// Every member gives what it holds; a piece that it holds twice, as the better kind.
void Assign(const Candidate& candidate, const std::vector<MemberOffer>& offers,
            RestoreDecision& decision) {
  std::vector<std::vector<int64_t>> given(offers.size());
  for (const Holding& holding : candidate.holdings) {
    const MemberOffer& offer = offers[holding.member];
    const HeldState& held = offer.held[holding.index];
    RestoreDecision::Member& member = decision.members[holding.member];
    member.finishes |= holding.finishes;
    if (!member.keeps.has_value() && Satisfies(held, offer)) member.keeps = holding.index;
    std::vector<int64_t>& already = given[holding.member];
    bool adds = false;
    for (const int64_t piece : held.pieces) {
      if (std::find(already.begin(), already.end(), piece) != already.end()) continue;
      already.push_back(piece);
      adds = true;
    }
    if (adds) member.gives.push_back(holding.index);
  }
}

Source WorstUsed(const Candidate& candidate, const std::vector<MemberOffer>& offers,
                 const RestoreDecision& decision) {
  Kind worst = Kind::kLive;
  for (size_t m = 0; m < offers.size(); ++m) {
    const MemberOffer& offer = offers[m];
    if (const std::optional<int>& kept = decision.members[m].keeps; kept.has_value()) {
      worst = std::max(worst, offer.held[*kept].kind);
      continue;
    }
    for (const auto& [piece, best] : candidate.best) {
      // Of another layout it may need any.
      const bool needs = !offer.needs.empty() &&
                         (offer.layout != decision.layout ||
                          std::binary_search(offer.needs.begin(), offer.needs.end(), piece));
      if (needs) worst = std::max(worst, best);
    }
  }
  return worst == Kind::kLive ? Source::kLive : Source::kSnapshot;
}

// "0-2,5"
std::string Ranges(const std::vector<size_t>& members) {
  std::string text;
  for (size_t i = 0; i < members.size();) {
    size_t last = i;
    while (last + 1 < members.size() && members[last + 1] == members[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", members[i]);
    if (last > i) absl::StrAppend(&text, "-", members[last]);
    i = last + 1;
  }
  return text;
}

std::string Reason(const std::vector<MemberOffer>& offers, const RestoreDecision& decision) {
  const std::string where = absl::StrCat("iteration ", decision.iteration);
  if (decision.source == Source::kBeginning) return "from the beginning: nobody holds more";
  if (decision.source == Source::kCheckpoint) return absl::StrCat(where, " from a checkpoint");
  std::vector<size_t> live, own, filled, finish;
  for (size_t m = 0; m < offers.size(); ++m) {
    const RestoreDecision::Member& member = decision.members[m];
    if (member.finishes) finish.push_back(m);
    if (member.keeps.has_value()) {
      (offers[m].held[*member.keeps].kind == Kind::kLive ? live : own).push_back(m);
    } else if (!offers[m].needs.empty()) {
      filled.push_back(m);
    }
  }
  std::string text = absl::StrCat(
      where, decision.source == Source::kLive ? " from live state" : " from snapshots");
  const auto add = [&](const char* what, const std::vector<size_t>& members) {
    if (!members.empty()) absl::StrAppend(&text, "; ", what, " ", Ranges(members));
  };
  add("live on", live);
  add("own snapshot on", own);
  add("filled:", filled);
  add("step finished on", finish);
  return text;
}

}  // namespace

absl::StatusOr<RestoreDecision> DecideRestore(const std::vector<MemberOffer>& offers) {
  ASSIGN_OR_RETURN(const AgreedResults results, CollectResults(offers));
  ASSIGN_OR_RETURN(const Candidates candidates, CollectCandidates(offers, results));

  RestoreDecision decision;
  decision.members.resize(offers.size());
  const int64_t checkpoint = offers.empty() ? -1 : offers.front().checkpoint;
  const Candidates::value_type* chosen = Choose(candidates, offers);
  if (chosen != nullptr && chosen->first.iteration >= checkpoint) {
    decision.iteration = chosen->first.iteration;
    decision.epoch = chosen->first.epoch;
    decision.layout = chosen->first.layout;
    Assign(chosen->second, offers, decision);
    decision.source = WorstUsed(chosen->second, offers, decision);
    const bool finishes = std::any_of(decision.members.begin(), decision.members.end(),
                                      [](const auto& member) { return member.finishes; });
    if (finishes) decision.finish_with = results.at({decision.iteration, decision.epoch});
  } else if (checkpoint >= 0) {
    decision.source = Source::kCheckpoint;
    decision.iteration = checkpoint;
  }
  // What survives the loss of a node is kept rather than what is newer.
  decision.safe_snapshots = NewestCovered(candidates, decision.iteration, 2);
  decision.snapshots = decision.safe_snapshots >= 0
                           ? decision.safe_snapshots
                           : NewestCovered(candidates, decision.iteration, 1);
  decision.reason = Reason(offers, decision);
  return decision;
}

}  // namespace muster
