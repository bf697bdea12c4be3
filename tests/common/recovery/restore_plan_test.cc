#include "common/recovery/restore_plan.h"

#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = HeldState::Kind;
using Source = RestoreDecision::Source;

constexpr AgreementVector kResult = {-3, 0, 0, 0, -2};

HeldState Held(Kind kind, int64_t iteration, std::vector<int64_t> pieces, int64_t num_pieces = 2,
               int64_t epoch = 1) {
  return {.kind = kind,
          .iteration = iteration,
          .epoch = epoch,
          .layout = "L",
          .pieces = pieces,
          .num_pieces = num_pieces};
}

// A rank that needs `piece` and holds what it holds.
MemberOffer Rank(int64_t piece, std::vector<HeldState> held = {}) {
  return {.held = std::move(held), .layout = "L", .needs = {piece}};
}
MemberOffer LiveRank(int64_t piece, int64_t iteration) {
  return Rank(piece, {Held(Kind::kLive, iteration, {piece})});
}
MemberOffer Prepared(MemberOffer offer) {
  offer.prepared = true;
  offer.prepared_epoch = 1;
  return offer;
}
MemberOffer Agreed(MemberOffer offer, int64_t step, AgreementVector result = kResult) {
  offer.agreed = result;
  offer.agreed_iteration = step;
  offer.agreed_epoch = 1;
  return offer;
}

RestoreDecision Decide(const std::vector<MemberOffer>& offers) {
  auto decision = DecideRestore(offers);
  EXPECT_TRUE(decision.ok()) << decision.status();
  return decision.ok() ? *decision : RestoreDecision();
}

TEST(RestorePlanTest, NobodyHoldsAnything) {
  const RestoreDecision decision = Decide({Rank(0), Rank(1)});
  EXPECT_EQ(decision.source, Source::kBeginning);
  EXPECT_EQ(decision.iteration, 0);
  EXPECT_EQ(decision.snapshots, -1);
}

TEST(RestorePlanTest, ANewProcessIsFilledFromItsReplica) {
  const RestoreDecision decision =
      Decide({LiveRank(0, 5), LiveRank(1, 5), LiveRank(0, 5), Rank(1)});
  EXPECT_EQ(decision.source, Source::kLive);
  EXPECT_EQ(decision.iteration, 5);
  EXPECT_EQ(decision.members[0].keeps, 0);
  EXPECT_EQ(decision.members[3].keeps, std::nullopt);
  EXPECT_THAT(decision.members[1].gives, ElementsAre(0));
  EXPECT_FALSE(decision.finish_with.has_value());
  EXPECT_EQ(decision.reason, "iteration 5 from live state; live on 0-2; filled: 3");
}

TEST(RestorePlanTest, AStepWhoseAgreementReturnedAnywhereIsFinished) {
  const RestoreDecision decision = Decide(
      {Agreed(LiveRank(0, 6), 6), Prepared(LiveRank(1, 5)), Prepared(LiveRank(0, 5)), Rank(1)});
  EXPECT_EQ(decision.iteration, 6);
  EXPECT_EQ(decision.finish_with, kResult);
  EXPECT_FALSE(decision.members[0].finishes);
  EXPECT_TRUE(decision.members[1].finishes);
  EXPECT_TRUE(decision.members[2].finishes);
  EXPECT_FALSE(decision.members[3].finishes);
  EXPECT_THAT(decision.reason, HasSubstr("step finished on 1-2"));
}

TEST(RestorePlanTest, WhoKnowsTheResultNeedNotHaveCommittedYet) {
  const RestoreDecision decision =
      Decide({Agreed(Prepared(LiveRank(0, 5)), 6), Prepared(LiveRank(1, 5))});
  EXPECT_EQ(decision.iteration, 6);
  EXPECT_TRUE(decision.members[0].finishes);
}

TEST(RestorePlanTest, AStepWhoseResultNobodyKnowsIsDropped) {
  const RestoreDecision decision =
      Decide({Agreed(Prepared(LiveRank(0, 5)), 5), Prepared(LiveRank(1, 5)), Rank(0)});
  EXPECT_EQ(decision.iteration, 5);
  EXPECT_FALSE(decision.finish_with.has_value());
}

TEST(RestorePlanTest, AnAgreementOfAnotherEpochDoesNotFinishAStep) {
  MemberOffer other = Prepared(LiveRank(1, 5));
  other.prepared_epoch = 2;
  EXPECT_EQ(Decide({Agreed(Prepared(LiveRank(0, 5)), 6), other}).iteration, 5);
}

TEST(RestorePlanTest, ALostShardTakesAllBackToTheNewestThatIsCovered) {
  const HeldState own = Held(Kind::kOwnSnapshot, 4, {0});
  // Rank 1's trainer died, its memory did not.
  const RestoreDecision decision = Decide(
      {Rank(0, {Held(Kind::kLive, 6, {0}), own}), Rank(1, {Held(Kind::kOwnSnapshot, 4, {1})})});
  EXPECT_EQ(decision.source, Source::kSnapshot);
  EXPECT_EQ(decision.iteration, 4);
  EXPECT_EQ(decision.members[0].keeps, 1);
  EXPECT_EQ(decision.members[1].keeps, 0);
  EXPECT_EQ(decision.snapshots, 4);
}

TEST(RestorePlanTest, ABuddysCopyCoversALostNode) {
  const RestoreDecision decision = Decide(
      {Rank(0, {Held(Kind::kOwnSnapshot, 4, {0}), Held(Kind::kBuddySnapshot, 4, {1})}), Rank(1)});
  EXPECT_EQ(decision.iteration, 4);
  EXPECT_THAT(decision.members[0].gives, ElementsAre(0, 1));
  EXPECT_EQ(decision.members[1].keeps, std::nullopt);
}

TEST(RestorePlanTest, TheSnapshotsToKeepAreThoseThatSurviveANode) {
  const auto rank = [](int64_t piece, bool buddy_has_5) {
    MemberOffer offer = Rank(
        piece, {Held(Kind::kLive, 6, {piece}), Held(Kind::kOwnSnapshot, 4, {piece}),
                Held(Kind::kOwnSnapshot, 5, {piece}), Held(Kind::kBuddySnapshot, 4, {1 - piece})});
    if (buddy_has_5) offer.held.push_back(Held(Kind::kBuddySnapshot, 5, {1 - piece}));
    return offer;
  };
  EXPECT_EQ(Decide({rank(0, true), rank(1, false)}).snapshots, 4);
  EXPECT_EQ(Decide({rank(0, true), rank(1, true)}).snapshots, 5);
  const RestoreDecision lost = Decide({rank(0, true), LiveRank(1, 6)});
  EXPECT_EQ(lost.snapshots, 5) << "either is better than none";
  EXPECT_EQ(lost.safe_snapshots, -1);
}

TEST(RestorePlanTest, LiveStateAndSnapshotsOfOneIterationAddUp) {
  const RestoreDecision decision =
      Decide({LiveRank(0, 4), Rank(1, {Held(Kind::kOwnSnapshot, 4, {1})})});
  EXPECT_EQ(decision.iteration, 4);
  EXPECT_EQ(decision.source, Source::kSnapshot);
  EXPECT_EQ(decision.snapshots, -1) << "snapshots alone do not cover it";
}

TEST(RestorePlanTest, TwoRunsOfOneStepAreNotMixed) {
  const RestoreDecision decision = Decide(
      {Rank(0, {Held(Kind::kLive, 4, {0}, 2, /*epoch=*/3), Held(Kind::kOwnSnapshot, 2, {0})}),
       Rank(1,
            {Held(Kind::kOwnSnapshot, 4, {1}, 2, /*epoch=*/1), Held(Kind::kOwnSnapshot, 2, {1})})});
  EXPECT_EQ(decision.iteration, 2);
  EXPECT_EQ(decision.epoch, 1);
}

TEST(RestorePlanTest, LayoutsAreNotMixed) {
  HeldState old = Held(Kind::kOwnSnapshot, 4, {1});
  old.layout = "older";
  EXPECT_EQ(Decide({LiveRank(0, 4), Rank(1, {old})}).source, Source::kBeginning);
}

TEST(RestorePlanTest, AnotherLayoutIsGivenToAll) {
  std::vector<MemberOffer> offers = {LiveRank(0, 4), LiveRank(1, 4)};
  offers[0].layout = "new";
  offers[1].layout = "new";
  const RestoreDecision decision = Decide(offers);
  EXPECT_EQ(decision.iteration, 4);
  EXPECT_EQ(decision.layout, "L");
  EXPECT_EQ(decision.members[0].keeps, std::nullopt);
  EXPECT_THAT(decision.members[0].gives, ElementsAre(0));
}

TEST(RestorePlanTest, ARankThatMovedKeepsNothingButGives) {
  // Two workers exchanged their ranks.
  const RestoreDecision decision =
      Decide({Rank(0, {Held(Kind::kLive, 4, {1})}), Rank(1, {Held(Kind::kLive, 4, {0})})});
  EXPECT_EQ(decision.members[0].keeps, std::nullopt);
  EXPECT_EQ(decision.members[1].keeps, std::nullopt);
  EXPECT_THAT(decision.members[0].gives, ElementsAre(0));
  EXPECT_EQ(decision.source, Source::kLive);
}

TEST(RestorePlanTest, AHelperGivesAndNeedsNothing) {
  MemberOffer helper = LiveRank(1, 4);
  helper.layout.clear();
  helper.needs.clear();
  const RestoreDecision decision = Decide({LiveRank(0, 4), Rank(1), helper});
  EXPECT_EQ(decision.iteration, 4);
  EXPECT_EQ(decision.members[2].keeps, std::nullopt);
  EXPECT_THAT(decision.members[2].gives, ElementsAre(0));
}

TEST(RestorePlanTest, TheNewerOfMemoryAndCheckpointIsTaken) {
  for (const int64_t checkpoint : {3, 4, 5}) {
    SCOPED_TRACE(checkpoint);
    std::vector<MemberOffer> offers = {LiveRank(0, 4), LiveRank(1, 4)};
    offers[0].checkpoint = checkpoint;
    offers[1].checkpoint = 99;  // only member 0's counts
    const RestoreDecision decision = Decide(offers);
    EXPECT_EQ(decision.iteration, checkpoint == 5 ? 5 : 4);
    EXPECT_EQ(decision.source, checkpoint == 5 ? Source::kCheckpoint : Source::kLive);
    EXPECT_EQ(decision.members[0].keeps.has_value(), checkpoint != 5);
  }
}

TEST(RestorePlanTest, ARecoveryThatWasHitInItsMiddleIsNoContradiction) {
  const HeldState s0 = Held(Kind::kOwnSnapshot, 2, {0}), s1 = Held(Kind::kOwnSnapshot, 2, {1});
  const RestoreDecision decision =
      Decide({Rank(0, {Held(Kind::kLive, 9, {0}), s0}), Rank(1, {Held(Kind::kLive, 2, {1}), s1})});
  EXPECT_EQ(decision.iteration, 2);
  EXPECT_EQ(decision.members[0].keeps, 1);
  EXPECT_EQ(decision.members[1].keeps, 0);
}

TEST(RestorePlanTest, ContradictionsAreRefused) {
  EXPECT_EQ(DecideRestore({Agreed(LiveRank(0, 6), 6), Agreed(LiveRank(1, 6), 6, {1, 1, 1, 1, 1})})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      DecideRestore({LiveRank(0, 4), Rank(1, {Held(Kind::kLive, 4, {1}, 3)})}).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecideRestore({Rank(0, {Held(Kind::kLive, 4, {2})})}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A dumb second version of the choice: the highest iteration for which some epoch's states cover
// every piece, looked up piece by piece.
TEST(RestorePlanTest, RandomOffersAreDecidedAsByAPlainSearch) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE(round);
    const int64_t num_pieces = 1 + random() % 3;
    std::vector<MemberOffer> offers(1 + random() % 5);
    for (MemberOffer& offer : offers) {
      const int64_t piece = random() % num_pieces;
      offer = Rank(piece);
      if (random() % 3 != 0) {
        offer.held.push_back(
            Held(Kind::kLive, 1 + random() % 4, {piece}, num_pieces, 1 + random() % 2));
        if (random() % 2 == 0) {
          offer.prepared = true;
          offer.prepared_epoch = 1 + random() % 2;
        }
        if (random() % 3 == 0) {
          offer.agreed = kResult;
          offer.agreed_iteration = offer.held[0].iteration;
          offer.agreed_epoch = offer.held[0].epoch;
        }
      }
      for (uint32_t n = random() % 3; n > 0; --n) {
        offer.held.push_back(Held(random() % 2 == 0 ? Kind::kOwnSnapshot : Kind::kBuddySnapshot,
                                  1 + random() % 4, {static_cast<int64_t>(random() % num_pieces)},
                                  num_pieces, 1 + random() % 2));
      }
    }
    const auto holds = [&](const MemberOffer& offer, int64_t iteration, int64_t epoch,
                           int64_t piece) {
      for (const HeldState& held : offer.held) {
        if (held.pieces[0] != piece) continue;
        if (held.iteration == iteration && held.epoch == epoch) return true;
        if (held.kind != Kind::kLive || !offer.prepared || offer.prepared_epoch != epoch ||
            held.iteration + 1 != iteration) {
          continue;
        }
        for (const MemberOffer& knower : offers) {
          if (knower.agreed.has_value() && knower.agreed_iteration == iteration &&
              knower.agreed_epoch == epoch) {
            return true;
          }
        }
      }
      return false;
    };
    int64_t want = 0;
    for (int64_t iteration = 1; iteration <= 6; ++iteration) {
      for (int64_t epoch = 1; epoch <= 2; ++epoch) {
        bool covered = true;
        for (int64_t piece = 0; piece < num_pieces; ++piece) {
          bool held = false;
          for (const MemberOffer& offer : offers) held |= holds(offer, iteration, epoch, piece);
          covered &= held;
        }
        if (covered) want = iteration;
      }
    }
    const RestoreDecision decision = Decide(offers);
    ASSERT_EQ(decision.iteration, want) << decision.reason;
    ASSERT_EQ(decision.source == Source::kBeginning, want == 0);
    if (want == 0) continue;
    std::set<int64_t> given;
    for (size_t m = 0; m < offers.size(); ++m) {
      const RestoreDecision::Member& member = decision.members[m];
      for (const int i : member.gives) given.insert(offers[m].held[i].pieces[0]);
      if (!member.keeps.has_value()) continue;
      const HeldState& kept = offers[m].held[*member.keeps];
      ASSERT_EQ(kept.pieces, offers[m].needs);
      if (kept.kind == Kind::kLive && member.finishes) {
        ASSERT_EQ(kept.iteration + 1, want);
      } else {
        ASSERT_EQ(kept.iteration, want);
        ASSERT_EQ(kept.epoch, decision.epoch);
      }
    }
    ASSERT_EQ(static_cast<int64_t>(given.size()), num_pieces);
    ASSERT_EQ(decision, Decide(offers)) << "not the same answer twice";
  }
}

TEST(OfferTest, OneLineThereAndBack) {
  MemberOffer offer = Agreed(
      Prepared(Rank(1, {Held(Kind::kLive, 6, {1}), Held(Kind::kBuddySnapshot, 4, {0, 1})})), 6);
  offer.checkpoint = 5;
  const std::string line = EncodeOffer(offer);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto back = DecodeOffer(line);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, offer);
  EXPECT_EQ(*DecodeOffer(EncodeOffer(MemberOffer())), MemberOffer());
}

TEST(OfferTest, WhatIsNoOfferIsRefused) {
  for (const char* text : {"", "{", "{}", "[]", R"({"held":[{}],"layout":"","needs":[]})",
                           R"({"held":[],"layout":1,"needs":[],"checkpoint":0})"}) {
    EXPECT_EQ(DecodeOffer(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  std::string line = EncodeOffer(Rank(0, {Held(Kind::kLive, 1, {0})}));
  line.replace(line.find("\"kind\":0"), 8, "\"kind\":7");
  EXPECT_EQ(DecodeOffer(line).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster
