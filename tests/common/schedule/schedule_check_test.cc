#include "common/schedule/schedule_check.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using Kind = ScheduleOp::Kind;

ScheduleOptions OneChunk(int pp, int m) {
  ScheduleOptions options;
  options.pp = pp;
  options.num_microbatches = m;
  return options;
}

// Every schedule that the generator makes runs to its end, in the strictest model that fits it.
TEST(ScheduleCheckTest, NoScheduleDeadlocks) {
  int num_checked = 0;
  for (int pp = 1; pp <= 8; ++pp) {
    for (int v = 1; v <= 4; ++v) {
      for (int m = 1; m <= 18; ++m) {
        for (int group : {0, pp + 1, pp + 3}) {
          for (int flags = 0; flags < 4; ++flags) {
            ScheduleOptions options;
            options.pp = pp;
            options.virtual_pp = v;
            options.num_microbatches = m;
            options.microbatch_group_size = group;
            options.forward_only = (flags & 1) != 0;
            options.overlap_p2p_comm = (flags & 2) != 0;
            options.has_grad_sync_func = options.has_param_sync_func = m % 2 == 0;
            auto schedule = MakePipelineSchedule(options);
            if (!schedule.ok()) continue;
            ++num_checked;
            const absl::Status status = CheckSchedule(options, *schedule);
            ASSERT_TRUE(status.ok()) << "pp" << pp << " v" << v << " m" << m << " N" << group
                                     << " flags " << flags << ": " << status;
          }
        }
      }
    }
  }
  EXPECT_GT(num_checked, 2000);
}

// Whatever the layout, every chunk's gradients are reduced exactly once a step: from a backward
// pass outside no_sync or by an explicit operation.
TEST(ScheduleCheckTest, EveryChunkIsReducedOnce) {
  for (int pp = 1; pp <= 5; ++pp) {
    for (int v = 1; v <= 3; ++v) {
      for (int m = 1; m <= 12; ++m) {
        for (bool func : {false, true}) {
          ScheduleOptions options;
          options.pp = pp;
          options.virtual_pp = v;
          options.num_microbatches = m;
          options.has_grad_sync_func = func;
          auto schedule = MakePipelineSchedule(options);
          if (!schedule.ok()) continue;
          for (const RankSchedule& list : *schedule) {
            std::vector<int> reduced(v, 0), backward_left(v, m);
            for (const ScheduleOp& op : list) {
              if (op.kind == Kind::kBackward) {
                --backward_left[op.chunk];
                reduced[op.chunk] += op.sync;
              }
              if (op.kind == Kind::kGradSync) {
                EXPECT_EQ(backward_left[op.chunk], 0) << "reduced before its last backward pass";
                ++reduced[op.chunk];
              }
              if (op.sync) {
                EXPECT_EQ(backward_left[op.chunk], 0);
              }
            }
            EXPECT_THAT(reduced, ::testing::Each(1)) << "pp" << pp << " v" << v << " m" << m;
          }
        }
      }
    }
  }
}

TEST(ScheduleCheckTest, FindsADeadlock) {
  // Two ranks that both send first and receive after, in separate exchanges.
  const ScheduleOptions options = OneChunk(2, 2);
  PipelineSchedule schedule = *MakePipelineSchedule(options);
  for (RankSchedule& list : schedule) {
    int exchange = 0;
    for (ScheduleOp& op : list) {
      if (op.exchange >= 0) op.exchange = exchange++;  // unfuse: sf then rb, sb then rf
    }
  }
  const absl::Status status = CheckSchedule(options, schedule, P2pModel::kRendezvous);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("deadlock: rank 0 at send_forward"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 at send_backward"));
}

TEST(ScheduleCheckTest, FindsAMissingReceive) {
  const ScheduleOptions options = OneChunk(2, 2);
  PipelineSchedule schedule = *MakePipelineSchedule(options);
  std::erase_if(schedule[1], [](const ScheduleOp& op) {
    return op.kind == Kind::kRecvForward && op.microbatch == 1;
  });
  EXPECT_FALSE(CheckSchedule(options, schedule).ok());
}

TEST(ScheduleCheckTest, FindsAWrongOrder) {
  const ScheduleOptions options = OneChunk(2, 2);
  PipelineSchedule schedule = *MakePipelineSchedule(options);
  for (ScheduleOp& op : schedule[0]) {
    if (op.kind == Kind::kSendForward || op.kind == Kind::kForward) op.microbatch ^= 1;
  }
  EXPECT_THAT(
      std::string(CheckSchedule(options, schedule).message()),
      HasSubstr("rank 1 waits for chunk 0 microbatch 0, rank 0 sends chunk 0 microbatch 1"));
}

TEST(ScheduleCheckTest, FindsALostBackwardPass) {
  const ScheduleOptions options = OneChunk(1, 3);
  PipelineSchedule schedule = *MakePipelineSchedule(options);
  schedule[0].pop_back();
  EXPECT_THAT(std::string(CheckSchedule(options, schedule).message()),
              HasSubstr("3 forward and 2 backward passes"));
}

// Any removed operation and any swap of two neighbouring computations of the same kind is noticed.
TEST(ScheduleCheckTest, FindsRandomDamage) {
  const uint64_t seed = 11;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 500; ++i) {
    ScheduleOptions options = OneChunk(2 + static_cast<int>(random() % 3), 8);
    options.virtual_pp = 1 + static_cast<int>(random() % 2);
    if (8 % options.pp != 0) continue;
    PipelineSchedule schedule = *MakePipelineSchedule(options);
    RankSchedule& list = schedule[random() % schedule.size()];
    list.erase(list.begin() + random() % list.size());
    EXPECT_FALSE(CheckSchedule(options, schedule).ok()) << "seed " << seed << " case " << i;
  }
}

}  // namespace
}  // namespace muster
