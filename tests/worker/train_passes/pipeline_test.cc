// Pipelines of toy chunks against the same model without a pipeline.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "tests/support/rank_processes.h"
#include "tests/worker/train_passes/recording_pipeline.h"
#include "tests/worker/train_passes/toy_pipeline.h"
#include "worker/comm/gloo_communicator.h"
#include "worker/comm/thread_communicator.h"
#include "worker/train/pipeline_exchange.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const ToyShape kShape;
int64_t MessageBytes() { return kShape.seq * kShape.batch * kShape.hidden * 8; }

std::string Name(const ScheduleOptions& o) {
  return absl::StrCat("pp", o.pp, " v", o.virtual_pp, " m", o.num_microbatches, " group ",
                      o.microbatch_group_size, o.overlap_p2p_comm ? " overlapped" : "",
                      o.overlap_p2p_comm_warmup_flush ? " throughout" : "",
                      o.forward_only ? " forward only" : "");
}

// What went wrong on this rank; empty: nothing.
absl::StatusOr<std::string> RunAndCompare(const ScheduleOptions& options, Communicator& world,
                                          const ToyReference& want) {
  std::string wrong;
  const auto expect = [&](bool holds, const std::string& claim) {
    if (!holds) absl::StrAppend(&wrong, claim, "\n");
  };
  const int rank = world.rank();
  ASSIGN_OR_RETURN(const RankSchedule schedule, MakeRankSchedule(options, rank));
  ToyRank toy(kShape, options, rank);
  if (!options.forward_only) {
    RETURN_IF_ERROR(toy.Wrap());
    toy.ddp->ZeroGradBuffer();
  }
  RecordingPipeline pp(world);
  int most_graphs = 0;
  std::vector<int> num_forward(toy.chunks.size()), num_backward(toy.chunks.size());
  const auto pass_name = [&](const char* kind, size_t chunk, int microbatch) {
    return options.virtual_pp > 1 ? absl::StrCat(kind, chunk, ".", microbatch)
                                  : absl::StrCat(kind, microbatch);
  };
  for (size_t c = 0; c < toy.chunks.size(); ++c) {
    const bool sends = rank < options.pp - 1 || c + 1 < toy.chunks.size();
    toy.chunks[c]->on_forward = [&, c, sends] {
      pp.events.push_back(pass_name("F", c, num_forward[c]++));
      int graphs = 0;
      for (const auto& chunk : toy.chunks) graphs += chunk->NumGraphs();
      most_graphs = std::max(most_graphs, graphs);
      // This pass's own output, and of those that were sent only what is still under way.
      const int under_way = options.overlap_p2p_comm ? PipelineExchange::kMaxPendingExchanges : 0;
      if (sends && toy.chunks[c]->NumOutputs() > 1 + under_way) {
        expect(false, absl::StrCat("keeps ", toy.chunks[c]->NumOutputs(), " outputs"));
      }
    };
    // The bias: differentiated once a pass.
    toy.chunks[c]->parameters()[c == 0 && rank == 0 ? 2 : 1]->data.register_hook(
        [&, c](const at::Tensor&) { pp.events.push_back(pass_name("B", c, num_backward[c]++)); });
  }
  ASSIGN_OR_RETURN(const ForwardBackwardResult result,
                   RunForwardBackward(toy.PassOptions(schedule, pp)));

  const bool last = rank == options.pp - 1;
  if (last) {
    expect(result.reported.count("lm loss") == 1 &&
               at::allclose(result.reported.at("lm loss"), want.reported, 1e-12, 1e-12),
           "losses differ");
  } else {
    expect(result.reported.empty(), "losses are reported before the last stage");
  }
  expect(result.num_tokens.item<int64_t>() == (last ? want.num_tokens : 0), "num_tokens");
  expect(toy.step.num_losses() == (last ? options.num_microbatches : 0), "loss function calls");
  for (const auto& chunk : toy.chunks) {
    for (const std::string& complaint : chunk->complaints) expect(false, complaint);
    expect(chunk->NumGraphs() == 0, "a graph is left");
  }
  expect(most_graphs == (options.forward_only ? 1 : MaxInFlight(schedule)),
         absl::StrCat("held ", most_graphs, " graphs"));
  int num_sends = 0;
  for (const ScheduleOp& op : schedule) {
    num_sends +=
        op.kind == ScheduleOp::Kind::kSendForward || op.kind == ScheduleOp::Kind::kSendBackward;
  }
  expect(pp.bytes_sent == num_sends * MessageBytes(), "bytes sent");
  expect(pp.num_opened == (options.pp > 1 ? 1 : 0), "channels opened");
  const std::string list =
      absl::StrReplaceAll(ScheduleText(schedule, options.virtual_pp), {{"!", ""}});
  expect(absl::StrJoin(pp.events, " ") == list,
         absl::StrCat("ran ", absl::StrJoin(pp.events, " "), "\nnot ", list));
  if (!options.forward_only) {
    ASSIGN_OR_RETURN(const auto gradients, toy.FinishGradients());
    absl::StrAppend(&wrong, CompareGradients(gradients, want));
  }
  return wrong;
}

void CheckPipeline(const ScheduleOptions& options, ThreadWorldOptions world_options = {}) {
  SCOPED_TRACE(Name(options));
  const ToyReference want =
      RunReference(kShape, options.pp * options.virtual_pp, options.num_microbatches);
  const auto results =
      RunToyRanks(MakeThreadWorld(options.pp, world_options), [&](Communicator& world) {
        const absl::StatusOr<std::string> wrong = RunAndCompare(options, world, want);
        RETURN_IF_ERROR(wrong.status());
        return wrong->empty() ? absl::OkStatus() : absl::InternalError(*wrong);
      });
  for (size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_TRUE(results[rank].ok()) << "rank " << rank << ": " << results[rank];
  }
}

// Buffered sends hide what blocking ones show, and the other way round.
void CheckOnBothWorlds(const ScheduleOptions& options) {
  CheckPipeline(options);
  CheckPipeline(options, {.blocking_sends = true, .operation_limit = absl::Seconds(20)});
}

TEST(PipelineTest, WithoutStagesBesideIt) {
  for (const int m : {1, 3}) {
    CheckPipeline({.num_microbatches = m});
    CheckPipeline({.num_microbatches = m, .forward_only = true});
  }
}

TEST(PipelineTest, OneForwardOneBackwardEqualsOneProcess) {
  for (const int pp : {2, 3, 4}) {
    for (const int m : {1, 2, 4, 8}) CheckOnBothWorlds({.pp = pp, .num_microbatches = m});
  }
}

TEST(PipelineTest, InterleavedEqualsOneProcess) {
  for (const int pp : {2, 3, 4}) {
    for (const int v : {2, 3}) {
      for (const bool overlap : {false, true}) {
        CheckOnBothWorlds(
            {.pp = pp, .virtual_pp = v, .num_microbatches = pp, .overlap_p2p_comm = overlap});
        CheckOnBothWorlds({.pp = pp,
                           .virtual_pp = v,
                           .num_microbatches = 8,
                           .microbatch_group_size = pp == 3 ? 4 : 0,
                           .overlap_p2p_comm = overlap});
      }
    }
  }
}

TEST(PipelineTest, ReceivingAheadInWarmupAndFlushEqualsOneProcess) {
  for (const int pp : {2, 3, 4}) {
    for (const int m : {pp, 2 * pp}) {
      for (const bool forward_only : {false, true}) {
        CheckOnBothWorlds({.pp = pp,
                           .virtual_pp = 2,
                           .num_microbatches = m,
                           .forward_only = forward_only,
                           .overlap_p2p_comm = true,
                           .overlap_p2p_comm_warmup_flush = true});
      }
    }
    CheckOnBothWorlds({.pp = pp,
                       .virtual_pp = 3,
                       .num_microbatches = 2 * (pp + 1),
                       .microbatch_group_size = pp + 1,
                       .overlap_p2p_comm = true,
                       .overlap_p2p_comm_warmup_flush = true});
  }
}

// The flag of a pass reaches the chunk that runs it.
TEST(PipelineTest, PassesAreRecomputedAsTheListSays) {
  for (const int v : {1, 2}) {
    ScheduleOptions options{.pp = 2, .virtual_pp = v, .num_microbatches = 6};
    options.num_microbatches_with_partial_activation_checkpoints = 1;
    const auto results = RunToyRanks(MakeThreadWorld(2), [&](Communicator& pp) -> absl::Status {
      ASSIGN_OR_RETURN(const RankSchedule schedule, MakeRankSchedule(options, pp.rank()));
      ToyRank toy(kShape, options, pp.rank());
      RETURN_IF_ERROR(toy.Wrap());
      std::vector<std::vector<bool>> want(toy.chunks.size());
      for (const ScheduleOp& op : schedule) {
        if (op.kind == ScheduleOp::Kind::kForward) want[op.chunk].push_back(op.recompute);
      }
      RETURN_IF_ERROR(RunForwardBackward(toy.PassOptions(schedule, pp)).status());
      for (size_t c = 0; c < want.size(); ++c) {
        if (toy.chunks[c]->recomputed != want[c]) return absl::InternalError("other passes");
        const bool both = want[c] != std::vector<bool>(want[c].size(), want[c][0]);
        if (!both && v == 1 && pp.rank() == 0) return absl::InternalError("all passes alike");
      }
      return absl::OkStatus();
    });
    for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(PipelineTest, AMicrobatchGroupMayBeLargerAndTheLastOneSmaller) {
  for (const bool overlap : {false, true}) {
    CheckOnBothWorlds({.pp = 2,
                       .virtual_pp = 2,
                       .num_microbatches = 5,
                       .microbatch_group_size = 3,
                       .overlap_p2p_comm = overlap});
  }
}

TEST(PipelineTest, ForwardOnlyKeepsNoGraph) {
  for (const int pp : {2, 4}) {
    CheckOnBothWorlds({.pp = pp, .num_microbatches = 3, .forward_only = true});
    for (const bool overlap : {false, true}) {
      CheckOnBothWorlds({.pp = pp,
                         .virtual_pp = 2,
                         .num_microbatches = 4,
                         .forward_only = true,
                         .overlap_p2p_comm = overlap});
    }
  }
}

// Its output shares the memory that was received into, which is used again for later messages.
TEST(PipelineTest, AStageWithoutLayersPassesOnWhatItGets) {
  ToyShape shape;
  shape.empty_stage = 1;
  for (const bool overlap : {false, true}) {
    for (const bool blocking : {false, true}) {
      const ScheduleOptions options{
          .pp = 3, .virtual_pp = 2, .num_microbatches = 6, .overlap_p2p_comm = overlap};
      const ToyReference want = RunReference(shape, 6, 6);
      const auto world = MakeThreadWorld(3, {.blocking_sends = blocking});
      const auto results = RunToyRanks(world, [&](Communicator& pp) -> absl::Status {
        ASSIGN_OR_RETURN(const RankSchedule schedule, MakeRankSchedule(options, pp.rank()));
        ToyRank toy(shape, options, pp.rank());
        RETURN_IF_ERROR(toy.Wrap());
        toy.ddp->ZeroGradBuffer();
        RETURN_IF_ERROR(RunForwardBackward(toy.PassOptions(schedule, pp)).status());
        ASSIGN_OR_RETURN(const auto gradients, toy.FinishGradients());
        const std::string wrong = CompareGradients(gradients, want);
        return wrong.empty() ? absl::OkStatus() : absl::InternalError(wrong);
      });
      for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
    }
  }
}

// MUSTER_SEED chooses another set.
TEST(PipelineTest, RandomSchedulesEqualOneProcess) {
  int64_t seed = 1;
  if (const char* text = std::getenv("MUSTER_SEED")) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &seed));
  }
  SCOPED_TRACE(absl::StrCat("MUSTER_SEED=", seed));
  std::printf("MUSTER_SEED=%ld\n", static_cast<long>(seed));
  std::mt19937_64 random(seed);
  const auto draw = [&](int low, int high) {
    return low + static_cast<int>(random() % (high - low + 1));
  };
  for (int done = 0; done < 40;) {
    ScheduleOptions options{
        .pp = draw(1, 4), .virtual_pp = draw(1, 3), .num_microbatches = draw(1, 8)};
    options.microbatch_group_size = options.virtual_pp > 1 ? draw(0, 8) : 0;
    options.overlap_p2p_comm = options.virtual_pp > 1 && draw(0, 1) == 1;
    options.overlap_p2p_comm_warmup_flush = options.overlap_p2p_comm && draw(0, 1) == 1;
    options.forward_only = draw(0, 4) == 0;
    if (!CheckScheduleOptions(options).ok()) continue;
    CheckPipeline(options,
                  {.blocking_sends = draw(0, 1) == 1, .operation_limit = absl::Seconds(20)});
    ++done;
  }
}

TEST(PipelineTest, ProcessesOverGloo) {
  const std::vector<ScheduleOptions> lists = {
      {.pp = 2, .num_microbatches = 5},
      {.pp = 2, .virtual_pp = 2, .num_microbatches = 4},
      {.pp = 2, .virtual_pp = 2, .num_microbatches = 4, .overlap_p2p_comm = true},
      {.pp = 2, .virtual_pp = 3, .num_microbatches = 6, .overlap_p2p_comm = true},
      {.pp = 2,
       .virtual_pp = 3,
       .num_microbatches = 6,
       .overlap_p2p_comm = true,
       .overlap_p2p_comm_warmup_flush = true}};
  const auto lines = RunForked(2, [&](RankLink& link) {
    auto world =
        FormGlooWorld({.rank = link.rank(), .size = 2, .epoch = 1, .store = link.Store(1)});
    if (!world.ok()) return link.Say(world.status().ToString());
    for (const ScheduleOptions& options : lists) {
      const ToyReference want =
          RunReference(kShape, options.pp * options.virtual_pp, options.num_microbatches);
      const absl::StatusOr<std::string> wrong = RunAndCompare(options, **world, want);
      if (!wrong.ok()) return link.Say(wrong.status().ToString());
      if (!wrong->empty()) link.Say(absl::StrCat(Name(options), ": ", *wrong));
    }
    (void)(*world)->Barrier()->Wait();
  });
  EXPECT_THAT(lines, IsEmpty());
}

TEST(PipelineTest, AListThatDoesNotFitIsRefused) {
  using Kind = ScheduleOp::Kind;
  const auto run = [](const RankSchedule& schedule, bool training, size_t num_iterators = 1) {
    ToyRank toy(kShape, {.forward_only = !training}, 0);
    if (training) {
      EXPECT_TRUE(toy.Wrap().ok());
    }
    ForwardBackwardOptions options = toy.PassOptions(schedule, *toy.alone);
    options.pp = nullptr;
    options.data.resize(num_iterators);
    return RunForwardBackward(options).status();
  };
  EXPECT_TRUE(run({{Kind::kForward, 0, 0}}, false).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(run({{Kind::kForward, 0, 0}}, false, 0)));
  EXPECT_TRUE(absl::IsInvalidArgument(run({{Kind::kForward, 1, 0}}, false)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(run({{Kind::kForward, 0, 0}, {Kind::kBackward, 0, 0}}, false)));
  EXPECT_TRUE(absl::IsFailedPrecondition(run({{Kind::kBackward, 0, 0}}, true)));
  EXPECT_TRUE(absl::IsInvalidArgument(run({{Kind::kRecvForward, 0, 0}}, true)));
}

// A stage that fails says why; the others are freed by the abort of whoever runs them.
TEST(PipelineTest, AStageThatFailsFreesAllOthers) {
  for (const bool overlap : {false, true}) {
    const ScheduleOptions options{
        .pp = 3, .virtual_pp = 2, .num_microbatches = 6, .overlap_p2p_comm = overlap};
    const absl::Time begin = absl::Now();
    const auto results = RunToyRanks(MakeThreadWorld(3), [&](Communicator& world) {
      ASSIGN_OR_RETURN(const RankSchedule schedule, MakeRankSchedule(options, world.rank()));
      ToyRank toy(kShape, options, world.rank());
      RETURN_IF_ERROR(toy.Wrap());
      if (world.rank() == 1) toy.data[1]->FailAt(2, absl::OutOfRangeError("no more data"));
      return RunForwardBackward(toy.PassOptions(schedule, world)).status();
    });
    EXPECT_EQ(results[1], absl::OutOfRangeError("no more data"));
    for (const int rank : {0, 2}) {
      EXPECT_TRUE(absl::IsAborted(results[rank])) << results[rank];
      EXPECT_THAT(std::string(results[rank].message()), HasSubstr("no more data"));
    }
    EXPECT_LT(absl::Now() - begin, absl::Seconds(1));
  }
}

}  // namespace
}  // namespace muster
