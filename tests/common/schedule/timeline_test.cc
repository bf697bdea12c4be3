#include "common/schedule/timeline.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

ScheduleOptions Options(int pp, int v, int m, bool overlap = false) {
  ScheduleOptions options;
  options.pp = pp;
  options.virtual_pp = v;
  options.num_microbatches = m;
  options.overlap_p2p_comm = overlap;
  return options;
}

Timeline Make(const ScheduleOptions& options, PassSlots slots = {}) {
  auto timeline = MakeTimeline(options, *MakePipelineSchedule(options), slots);
  EXPECT_TRUE(timeline.ok()) << timeline.status();
  return *timeline;
}

TEST(TimelineTest, TwoStagesByHand) {
  //        0  1  2  3  4  5  6  7  8
  // rank 0 F0 F1 .  B0-- .  B1--
  // rank 1 .  F0 B0-- F1 B1--
  const Timeline timeline = Make(Options(2, 1, 2));
  EXPECT_EQ(timeline.num_slots, 9);
  EXPECT_THAT(timeline.ranks[0],
              ElementsAre(TimelineCell{false, 0, 0, {0, 1}}, TimelineCell{false, 0, 1, {1, 2}},
                          TimelineCell{true, 0, 0, {4, 6}}, TimelineCell{true, 0, 1, {7, 9}}));
  EXPECT_THAT(timeline.ranks[1],
              ElementsAre(TimelineCell{false, 0, 0, {1, 2}}, TimelineCell{true, 0, 0, {2, 4}},
                          TimelineCell{false, 0, 1, {4, 5}}, TimelineCell{true, 0, 1, {5, 7}}));
  EXPECT_EQ(timeline.MeasuredBubble(), 0.5);
}

TEST(TimelineTest, OneForwardOneBackwardHasTheBubbleOfTheFormula) {
  const Timeline timeline = Make(Options(4, 1, 8));
  EXPECT_EQ(timeline.num_slots, (8 + 4 - 1) * 3);
  EXPECT_EQ(timeline.MeasuredBubble(), 0.375);  // (p - 1) / m
  for (int pp = 1; pp <= 8; ++pp) {
    for (int m = 1; m <= 32; ++m) {
      const ScheduleOptions options = Options(pp, 1, m);
      EXPECT_EQ(Make(options).num_slots, (m + pp - 1) * 3) << "pp " << pp << " m " << m;
      EXPECT_DOUBLE_EQ(Make(options).MeasuredBubble(), BubbleFraction(options));
    }
  }
}

TEST(TimelineTest, VirtualStagesShrinkTheBubble) {
  for (int pp = 2; pp <= 6; ++pp) {
    double before = Make(Options(pp, 1, 4 * pp)).MeasuredBubble();
    for (int v = 2; v <= 4; ++v) {
      const ScheduleOptions options = Options(pp, v, 4 * pp, true);
      const double bubble = Make(options).MeasuredBubble();
      EXPECT_DOUBLE_EQ(bubble, BubbleFraction(options)) << "pp " << pp << " v " << v;
      EXPECT_LT(bubble, before);
      before = bubble;
    }
  }
}

// What exchanging with both neighbours at once costs.
TEST(TimelineTest, OverlapIsNeverSlower) {
  for (int pp = 2; pp <= 6; ++pp) {
    for (int v = 2; v <= 4; ++v) {
      EXPECT_LE(Make(Options(pp, v, 2 * pp, true)).num_slots,
                Make(Options(pp, v, 2 * pp, false)).num_slots);
    }
  }
}

// Cells of a rank do not overlap, and none begins before what it depends on has ended.
TEST(TimelineTest, CellsKeepTheirOrder) {
  const ScheduleOptions options = Options(4, 2, 8, true);
  const Timeline timeline = Make(options, {.forward = 3, .backward = 5});
  auto end_of = [&](int stage, bool backward, int microbatch) {
    for (const TimelineCell& cell : timeline.ranks[stage % 4]) {
      if (cell.backward == backward && cell.chunk == stage / 4 && cell.microbatch == microbatch) {
        return cell.slots.end;
      }
    }
    return int64_t{-1};
  };
  for (int rank = 0; rank < 4; ++rank) {
    int64_t free = 0;
    EXPECT_EQ(timeline.ranks[rank].size(), 32u);
    for (const TimelineCell& cell : timeline.ranks[rank]) {
      EXPECT_GE(cell.slots.begin, free);
      EXPECT_EQ(cell.slots.end - cell.slots.begin, cell.backward ? 5 : 3);
      free = cell.slots.end;
      const int stage = cell.chunk * 4 + rank;
      if (!cell.backward && stage > 0) {
        EXPECT_GE(cell.slots.begin, end_of(stage - 1, false, cell.microbatch));
      }
      if (cell.backward && stage < 7) {
        EXPECT_GE(cell.slots.begin, end_of(stage + 1, true, cell.microbatch));
      }
    }
  }
}

TEST(TimelineTest, ForwardOnlyFillsThePipelineOnce) {
  ScheduleOptions options = Options(4, 1, 6);
  options.forward_only = true;
  EXPECT_EQ(Make(options).num_slots, 6 + 3);
}

}  // namespace
}  // namespace muster
