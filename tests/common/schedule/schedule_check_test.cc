#include "common/schedule/schedule_check.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/schedule/timeline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using Kind = ScheduleOp::Kind;

ScheduleOptions Options(int pp, int v, int m) {
  ScheduleOptions options;
  options.pp = pp;
  options.virtual_pp = v;
  options.num_microbatches = m;
  return options;
}

std::string Complaint(const ScheduleOptions& options, const PipelineSchedule& schedule) {
  const absl::Status status = CheckSchedule(options, schedule);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  }
  return std::string(status.message());
}

size_t Find(const RankSchedule& list, Kind kind, int chunk, int microbatch) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const ScheduleOp& op) {
    return op.kind == kind && op.chunk == chunk && op.microbatch == microbatch;
  });
  EXPECT_NE(found, list.end());
  return found - list.begin();
}

// What the generator may refuse, said again in its own words.
bool IsValid(const ScheduleOptions& o) {
  if (o.overlap_p2p_comm_warmup_flush && !o.overlap_p2p_comm) return false;
  if (o.virtual_pp == 1) return !o.overlap_p2p_comm;
  const int group = o.microbatch_group_size == 0 ? o.pp : o.microbatch_group_size;
  const int rest = o.num_microbatches % group;
  return o.pp > 1 && group >= o.pp && group <= o.num_microbatches && (rest == 0 || rest >= o.pp);
}

// Every combination gives lists that pass all rules, or the error of the reference.
class AllSchedules : public testing::TestWithParam<int> {};

TEST_P(AllSchedules, PassTheCheckerOrAreRefused) {
  int num_checked = 0, num_refused = 0;
  const int pp = GetParam();
  for (int v = 1; v <= 4; ++v) {
    for (int m = 1; m <= 32; ++m) {
      const int last_group = v == 1 ? 0 : m + 1;  // has no say without virtual stages
      for (int group = 0; group <= last_group; ++group) {
        for (int flags = 0; flags < 8; ++flags) {
          ScheduleOptions options = Options(pp, v, m);
          options.microbatch_group_size = group;
          options.forward_only = (flags & 1) != 0;
          options.overlap_p2p_comm = (flags & 2) != 0;
          options.overlap_p2p_comm_warmup_flush = (flags & 4) != 0;
          options.has_grad_sync_func = m % 2 == 0;
          options.has_param_sync_func = m % 3 == 0;
          SCOPED_TRACE(testing::Message() << "pp " << pp << " v " << v << " m " << m << " group "
                                          << group << " flags " << flags);
          const auto schedule = MakePipelineSchedule(options);
          if (!IsValid(options)) {
            ASSERT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
            ++num_refused;
            continue;
          }
          ASSERT_TRUE(schedule.ok()) << schedule.status();
          const absl::Status status = CheckSchedule(options, *schedule);
          ASSERT_TRUE(status.ok()) << status;
          ++num_checked;
        }
      }
    }
  }
  EXPECT_GT(num_checked, pp == 1 ? 60 : 1000);
  EXPECT_GT(num_refused, 60);
}
INSTANTIATE_TEST_SUITE_P(Pp, AllSchedules, testing::Range(1, 9));

// Receiving ahead changes what waits for what, and nothing else: the same passes in the same order,
// the same messages; each receive stands where it stood or before.
TEST(ScheduleCheckTest, WarmupFlushOnlyMovesReceivesForward) {
  for (const int pp : {2, 3, 4, 6}) {
    for (const int v : {2, 3}) {
      for (const int m : {pp, 3 * pp}) {
        SCOPED_TRACE(testing::Message() << "pp " << pp << " v " << v << " m " << m);
        ScheduleOptions options = Options(pp, v, m);
        options.overlap_p2p_comm = true;
        const PipelineSchedule plain = *MakePipelineSchedule(options);
        options.overlap_p2p_comm_warmup_flush = true;
        const PipelineSchedule flushed = *MakePipelineSchedule(options);
        for (int rank = 0; rank < pp; ++rank) {
          const auto without_receives = [](RankSchedule list) {
            std::erase_if(list, [](const ScheduleOp& op) {
              return op.kind == Kind::kRecvForward || op.kind == Kind::kRecvBackward;
            });
            for (ScheduleOp& op : list) op.exchange = -1;
            return list;
          };
          EXPECT_EQ(without_receives(plain[rank]), without_receives(flushed[rank]));
          ASSERT_EQ(plain[rank].size(), flushed[rank].size());
          int num_moved = 0;
          for (size_t i = 0; i < plain[rank].size(); ++i) {
            const ScheduleOp& op = plain[rank][i];
            if (op.kind != Kind::kRecvForward && op.kind != Kind::kRecvBackward) continue;
            const size_t position = Find(flushed[rank], op.kind, op.chunk, op.microbatch);
            EXPECT_LE(position, i);
            num_moved += position < i ? 1 : 0;
          }
          EXPECT_GT(num_moved, 0) << "rank " << rank;
        }
        // Of no harm to the ideal time.
        EXPECT_EQ(MakeTimeline(options, plain)->num_slots,
                  MakeTimeline(options, flushed)->num_slots);
      }
    }
  }
}

// Of w + 1 passes in a row as many as asked for keep what they can, on every rank; never more of
// those in flight.
TEST(ScheduleCheckTest, PartialCheckpointsAreThatManyOfEachWindow) {
  for (const int v : {1, 2}) {
    for (int partial = 0; partial <= 8; ++partial) {
      ScheduleOptions options = Options(4, v, 12);
      options.num_microbatches_with_partial_activation_checkpoints = partial;
      const PipelineSchedule schedule = *MakePipelineSchedule(options);
      EXPECT_EQ(Complaint(options, schedule), "");
      for (int rank = 0; rank < options.pp; ++rank) {
        const int window = CountWarmup(options, rank).warmup + 1;
        int step = 0, in_flight = 0;
        std::map<std::pair<int, int>, bool> keeps;
        for (const ScheduleOp& op : schedule[rank]) {
          if (op.kind == Kind::kForward) {
            EXPECT_EQ(op.recompute, step++ % window >= partial);
            keeps[{op.chunk, op.microbatch}] = !op.recompute;
            in_flight += op.recompute ? 0 : 1;
            if (v == 1) {
              EXPECT_LE(in_flight, partial);
            }
          } else {
            EXPECT_FALSE(op.recompute);
          }
          if (op.kind == Kind::kBackward) in_flight -= keeps.at({op.chunk, op.microbatch}) ? 1 : 0;
        }
      }
    }
  }
  ScheduleOptions evaluation = Options(4, 1, 8);
  evaluation.num_microbatches_with_partial_activation_checkpoints = 0;
  evaluation.forward_only = true;
  PipelineSchedule schedule = *MakePipelineSchedule(evaluation);
  EXPECT_EQ(Complaint(evaluation, schedule), "");
  schedule[0][Find(schedule[0], Kind::kForward, 0, 3)].recompute = true;
  EXPECT_THAT(Complaint(evaluation, schedule), HasSubstr("only forward passes of training"));
}

// The bound is reached: it is not merely large.
TEST(ScheduleCheckTest, TheBoundOfActivationsIsTight) {
  for (const ScheduleOptions& options :
       {Options(4, 1, 8), Options(4, 1, 2), Options(4, 2, 8), Options(2, 3, 8), Options(4, 2, 4)}) {
    const PipelineSchedule schedule = *MakePipelineSchedule(options);
    for (int rank = 0; rank < options.pp; ++rank) {
      EXPECT_EQ(MaxInFlight(schedule[rank]), MaxInFlightBound(options, rank));
    }
  }
  EXPECT_EQ(MaxInFlightBound(Options(4, 1, 8), 0), 4);
  EXPECT_EQ(MaxInFlightBound(Options(4, 2, 8), 0), 11);  // G4.4: warm-up 10
}

// Hand-broken lists: each gets its complaint.
struct Damage {
  const char* name;
  ScheduleOptions options;
  std::function<void(PipelineSchedule*)> apply;
  const char* complaint;
};

void Erase(PipelineSchedule* schedule, int rank, Kind kind, int chunk, int microbatch) {
  RankSchedule& list = (*schedule)[rank];
  list.erase(list.begin() + Find(list, kind, chunk, microbatch));
}
void Swap(PipelineSchedule* schedule, int rank, Kind kind, int microbatch, int other) {
  RankSchedule& list = (*schedule)[rank];
  std::swap(list[Find(list, kind, 0, microbatch)].microbatch,
            list[Find(list, kind, 0, other)].microbatch);
}
// The gradients of chunk 0 are reduced at the beginning.
void ReduceEarly(PipelineSchedule* schedule) {
  RankSchedule& list = (*schedule)[1];
  const size_t sync = Find(list, Kind::kGradSync, 0, -1);
  const size_t backward = Find(list, Kind::kBackward, 0, 2);
  std::rotate(list.begin() + backward, list.begin() + sync, list.begin() + sync + 1);
}

std::vector<Damage> Damages() {
  ScheduleOptions with_func = Options(2, 1, 4), evaluation = Options(2, 1, 2);
  with_func.has_grad_sync_func = true;
  evaluation.forward_only = true;
  const ScheduleOptions plain = Options(2, 1, 4), three = Options(3, 1, 4);
  return {
      {"swapped receives", three,
       [](PipelineSchedule* s) {
         // Both receives come before both forward passes, so the list itself keeps its rules.
         (*s)[2] = {{Kind::kRecvForward, 0, 1, 0},
                    {Kind::kRecvForward, 0, 0, 1},
                    {Kind::kForward, 0, 0},
                    {Kind::kBackward, 0, 0},
                    {Kind::kSendBackward, 0, 0, 2},
                    {Kind::kForward, 0, 1},
                    {Kind::kBackward, 0, 1},
                    {Kind::kSendBackward, 0, 1, 3},
                    {Kind::kRecvForward, 0, 2, 4},
                    {Kind::kForward, 0, 2},
                    {Kind::kBackward, 0, 2},
                    {Kind::kSendBackward, 0, 2, 5},
                    {Kind::kRecvForward, 0, 3, 6},
                    {Kind::kForward, 0, 3},
                    {Kind::kBackward, 0, 3, -1, true},
                    {Kind::kSendBackward, 0, 3, 7}};
       },
       "rank 2, operation 0 (recv_forward chunk 0 microbatch 1): gets what rank 1, operation 2 "
       "(send_forward chunk 0 microbatch 0) sends"},
      {"receive missing", plain, [](PipelineSchedule* s) { Erase(s, 1, Kind::kRecvForward, 0, 1); },
       "rank 1, operation 4 (forward chunk 0 microbatch 1): its input was not received"},
      {"receive of a gradient missing", plain,
       [](PipelineSchedule* s) { Erase(s, 0, Kind::kRecvBackward, 0, 0); },
       "rank 0, operation 4 (backward chunk 0 microbatch 0): its gradient was not received"},
      {"send missing", plain, [](PipelineSchedule* s) { Erase(s, 0, Kind::kSendForward, 0, 3); },
       "rank 0: send_forward chunk 0 microbatch 3 is missing"},
      {"forward missing", plain, [](PipelineSchedule* s) { Erase(s, 1, Kind::kForward, 0, 3); },
       "(backward chunk 0 microbatch 3): runs before its forward pass"},
      {"forward twice", plain,
       [](PipelineSchedule* s) {
         (*s)[1].push_back({Kind::kForward, 0, 2});
       },
       "(forward chunk 0 microbatch 2): is done twice"},
      {"backward missing", plain, [](PipelineSchedule* s) { Erase(s, 0, Kind::kBackward, 0, 2); },
       "rank 0, operation 14 (backward chunk 0 microbatch 3): gradients are reduced after 3 of 4"},
      {"last backward missing", Options(1, 1, 3), [](PipelineSchedule* s) { (*s)[0].pop_back(); },
       "rank 0: backward chunk 0 microbatch 2 is missing"},
      {"send before its pass", plain,
       [](PipelineSchedule* s) { std::swap((*s)[0][0], (*s)[0][1]); },
       "rank 0, operation 0 (send_forward chunk 0 microbatch 0): is sent before it was computed"},
      {"early grad_sync", with_func, ReduceEarly,
       "(grad_sync chunk 0): gradients are reduced after 2 of 4 backward passes of the chunk"},
      {"second grad_sync", with_func,
       [](PipelineSchedule* s) {
         (*s)[1].push_back({Kind::kGradSync, 0, -1});
       },
       "(grad_sync chunk 0): the chunk's gradients are reduced twice"},
      {"no grad_sync", with_func, [](PipelineSchedule* s) { (*s)[1].pop_back(); },
       "rank 1: gradients of chunk 0 are never reduced"},
      {"late param_sync", Options(2, 2, 4),
       [](PipelineSchedule* s) {
         (*s)[1].push_back({Kind::kParamSync, 1, -1});
       },
       "(param_sync chunk 1): parameters are gathered after they were used"},
      {"chunk out of range", plain, [](PipelineSchedule* s) { (*s)[0][0].chunk = 1; },
       "rank 0, operation 0 (forward chunk 1 microbatch 0): no such chunk"},
      {"microbatch out of range", plain, [](PipelineSchedule* s) { (*s)[0][0].microbatch = 4; },
       "rank 0, operation 0 (forward chunk 0 microbatch 4): no such microbatch"},
      {"beyond the last stage", plain,
       [](PipelineSchedule* s) {
         (*s)[1].insert((*s)[1].begin() + 2, {Kind::kSendForward, 0, 0});
       },
       "rank 1, operation 2 (send_forward chunk 0 microbatch 0): there is no such stage"},
      {"backward in an evaluation", evaluation,
       [](PipelineSchedule* s) {
         (*s)[1].push_back({Kind::kBackward, 0, 0});
       },
       "(backward chunk 0 microbatch 0): this schedule has forward passes only"},
      {"a rank missing", plain, [](PipelineSchedule* s) { s->pop_back(); }, "there are 1, not 2"},
      {"all forward passes first", Options(1, 1, 3),
       [](PipelineSchedule* s) {
         std::stable_partition((*s)[0].begin(), (*s)[0].end(),
                               [](const ScheduleOp& op) { return op.kind == Kind::kForward; });
       },
       "rank 0, operation 1 (forward chunk 0 microbatch 1): holds activations of 2 passes, more "
       "than 1"},
      {"messages in another order", plain,
       [](PipelineSchedule* s) {
         Swap(s, 0, Kind::kForward, 0, 1);
         Swap(s, 0, Kind::kSendForward, 0, 1);
         Swap(s, 0, Kind::kRecvBackward, 0, 1);
         Swap(s, 0, Kind::kBackward, 0, 1);
       },
       "rank 1, operation 0 (recv_forward chunk 0 microbatch 0): gets what rank 0, operation 1 "
       "(send_forward chunk 0 microbatch 1) sends"},
  };
}

TEST(ScheduleCheckTest, SaysWhatIsWrongWithABrokenList) {
  for (const Damage& damage : Damages()) {
    SCOPED_TRACE(damage.name);
    PipelineSchedule schedule = *MakePipelineSchedule(damage.options);
    ASSERT_EQ(Complaint(damage.options, schedule), "");
    damage.apply(&schedule);
    EXPECT_THAT(Complaint(damage.options, schedule), HasSubstr(damage.complaint));
  }
}

// Every send and receive an exchange of its own.
void Unfuse(PipelineSchedule* schedule) {
  for (RankSchedule& list : *schedule) {
    int exchange = 0;
    for (ScheduleOp& op : list) {
      if (op.exchange >= 0) op.exchange = exchange++;
    }
  }
}

// Both send first and receive after: harmless with buffers, fatal without.
TEST(ScheduleCheckTest, FindsADeadlockOfBlockingSends) {
  const ScheduleOptions options = Options(2, 1, 2);
  PipelineSchedule schedule = *MakePipelineSchedule(options);
  Unfuse(&schedule);
  EXPECT_EQ(Complaint(options, schedule),
            "deadlock with rendezvous communication: rank 0, operation 3 (send_forward chunk 0 "
            "microbatch 1) waits for rank 1 to receive it; rank 1, operation 3 (send_backward "
            "chunk 0 microbatch 0) waits for rank 0 to receive it; cycle: rank 1 -> 0 -> 1");
  EXPECT_TRUE(CheckSchedule(options, schedule, P2pModel::kBuffered).ok());
  EXPECT_TRUE(CheckSchedule(options, schedule, P2pModel::kAsynchronous).ok());
}

// Rank 0 wants the gradient before it sends the input: no buffer and no thread helps.
TEST(ScheduleCheckTest, FindsACyclicWaitInEveryModel) {
  const ScheduleOptions options = Options(2, 1, 1);
  PipelineSchedule schedule = *MakePipelineSchedule(options);
  ASSERT_EQ(ScheduleText(schedule[0], 1), "F0 sf rb B0!");
  schedule[0] = {{Kind::kForward, 0, 0},
                 {Kind::kRecvBackward, 0, 0, 0},
                 {Kind::kBackward, 0, 0, -1, true},
                 {Kind::kSendForward, 0, 0, 1}};
  for (const P2pModel model :
       {P2pModel::kRendezvous, P2pModel::kBuffered, P2pModel::kAsynchronous}) {
    SCOPED_TRACE(P2pModelName(model));
    const std::string text(CheckSchedule(options, schedule, model).message());
    EXPECT_THAT(text, HasSubstr(absl::StrCat("deadlock with ", P2pModelName(model))));
    EXPECT_THAT(text, HasSubstr(model == P2pModel::kAsynchronous
                                    ? "rank 0, operation 2 (backward chunk 0 microbatch 0) waits "
                                      "for rank 1 to send its gradient"
                                    : "rank 0, operation 1 (recv_backward chunk 0 microbatch 0) "
                                      "waits for rank 1 to send it"));
    EXPECT_THAT(text, HasSubstr("cycle: rank "));
  }
}

// Any removed operation of any list is noticed.
TEST(ScheduleCheckTest, FindsRandomDamage) {
  const uint64_t seed = 11;
  std::mt19937_64 random(seed);
  for (int i = 0; i < 500; ++i) {
    const int pp = 2 << (random() % 2);
    ScheduleOptions options = Options(pp, 1 + static_cast<int>(random() % 2), 8);
    options.overlap_p2p_comm = options.virtual_pp > 1 && random() % 2 == 0;
    options.overlap_p2p_comm_warmup_flush = options.overlap_p2p_comm && random() % 2 == 0;
    options.has_grad_sync_func = options.has_param_sync_func = random() % 2 == 0;
    PipelineSchedule schedule = *MakePipelineSchedule(options);
    RankSchedule& list = schedule[random() % schedule.size()];
    list.erase(list.begin() + random() % list.size());
    EXPECT_NE(Complaint(options, schedule), "") << "seed " << seed << " case " << i;
  }
}

}  // namespace
}  // namespace muster
