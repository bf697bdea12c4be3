#include "common/schedule/pipeline_schedule.h"

#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/schedule/schedule_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Block {
  std::string header;
  ScheduleOptions options;
  bool compute_only = false, with_sync = false;
  std::vector<std::string> lines;
};

std::vector<Block> ReadBlocks() {
  std::ifstream file(MUSTER_SOURCE_DIR "/tests/golden/pipeline_schedules.txt");
  std::vector<Block> blocks;
  std::string line;
  bool in_header = true;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') {
      in_header = true;
    } else if (line == "----") {
      in_header = false;
    } else if (!in_header) {
      blocks.back().lines.push_back(line);
    } else {
      Block& block = blocks.emplace_back();
      block.header = line;
      for (const std::string& word : std::vector<std::string>(absl::StrSplit(line, ' '))) {
        const std::vector<std::string> pair = absl::StrSplit(word, '=');
        int number = 0;
        if (pair.size() == 2) {
          EXPECT_TRUE(absl::SimpleAtoi(pair[1], &number));
        }
        ScheduleOptions& options = block.options;
        if (pair[0] == "pp") options.pp = number;
        if (pair[0] == "v") options.virtual_pp = number;
        if (pair[0] == "m") options.num_microbatches = number;
        if (pair[0] == "N") options.microbatch_group_size = number;
        if (word == "forward_only") options.forward_only = true;
        if (word == "overlap") options.overlap_p2p_comm = true;
        if (word == "flush") options.overlap_p2p_comm_warmup_flush = true;
        if (pair[0] == "partial") {
          options.num_microbatches_with_partial_activation_checkpoints = number;
        }
        if (word == "grad_func") options.has_grad_sync_func = true;
        if (word == "param_func") options.has_param_sync_func = true;
        if (word == "compute") block.compute_only = true;
        if (word == "sync") block.with_sync = true;
      }
    }
  }
  return blocks;
}

TEST(PipelineScheduleTest, GoldenListsOfG4_1ToG4_9AndByHand) {
  const std::vector<Block> blocks = ReadBlocks();
  EXPECT_EQ(blocks.size(), 18u);
  for (const Block& block : blocks) {
    SCOPED_TRACE(block.header);
    auto schedule = MakePipelineSchedule(block.options);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    ASSERT_EQ(schedule->size(), block.lines.size());
    for (size_t rank = 0; rank < schedule->size(); ++rank) {
      RankSchedule list = (*schedule)[rank];
      if (block.compute_only) {
        std::erase_if(list, [](const ScheduleOp& op) { return op.exchange >= 0; });
      }
      std::string text = ScheduleText(list, block.options.virtual_pp);
      if (!block.with_sync) text = absl::StrReplaceAll(text, {{"!", ""}});
      EXPECT_EQ(text, block.lines[rank]) << "rank " << rank;
    }
    EXPECT_TRUE(CheckSchedule(block.options, *schedule).ok())
        << CheckSchedule(block.options, *schedule);
  }
}

TEST(PipelineScheduleTest, TablesG4_3) {
  using M = VirtualMicrobatch;  // microbatch, chunk
  EXPECT_THAT(InterleavedTable(5, 2, 3), ElementsAre(M{0, 0}, M{1, 0}, M{2, 0}, M{0, 1}, M{1, 1},
                                                     M{2, 1}, M{3, 0}, M{4, 0}, M{3, 1}, M{4, 1}));
  EXPECT_THAT(InterleavedTable(4, 2, 2),
              ElementsAre(M{0, 0}, M{1, 0}, M{0, 1}, M{1, 1}, M{2, 0}, M{3, 0}, M{2, 1}, M{3, 1}));
}

TEST(PipelineScheduleTest, WarmupCountsG4_4) {
  struct Row {
    const char* name;
    ScheduleOptions options;
    std::vector<WarmupCount> expected;
  };
  auto with = [](int pp, int v, int m, int group = 0, bool moe = false) {
    ScheduleOptions options;
    options.pp = pp;
    options.virtual_pp = v;
    options.num_microbatches = m;
    options.microbatch_group_size = group;
    options.overlap_moe_expert_parallel_comm = moe;
    return options;
  };
  const Row rows[] = {
      {"pp4 m8",
       with(4, 1, 8),
       {{8, false, 3, 5}, {8, false, 2, 6}, {8, false, 1, 7}, {8, false, 0, 8}}},
      {"pp4 v2 m8",
       with(4, 2, 8),
       {{16, false, 10, 6}, {16, false, 8, 8}, {16, false, 6, 10}, {16, false, 4, 12}}},
      {"pp4 v2 m4",
       with(4, 2, 4),
       {{8, true, 8, 0}, {8, true, 8, 0}, {8, false, 6, 2}, {8, false, 4, 4}}},
      {"pp2 v3 m2", with(2, 3, 2), {{6, true, 6, 0}, {6, false, 4, 2}}},
      {"pp2 v2 m8 N4", with(2, 2, 8, 4), {{16, false, 6, 10}, {16, false, 4, 12}}},
      {"pp4 v4 m8",
       with(4, 4, 8),
       {{32, false, 18, 14}, {32, false, 16, 16}, {32, false, 14, 18}, {32, false, 12, 20}}},
      {"pp4 v2 m8 MoE overlap",
       with(4, 2, 8, 0, true),
       {{16, false, 11, 5}, {16, false, 9, 7}, {16, false, 7, 9}, {16, false, 5, 11}}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message() << "G4.4 " << row.name);
    for (int rank = 0; rank < row.options.pp; ++rank) {
      EXPECT_EQ(CountWarmup(row.options, rank), row.expected[rank]) << "rank " << rank;
    }
  }
}

TEST(PipelineScheduleTest, ErrorsG4_10) {
  struct Row {
    int pp, m, v, group;
    const char* message;
  };
  const Row rows[] = {
      {4, 3, 2, 4, "at most num_microbatches=3"},
      {2, 4, 2, 8, "at most num_microbatches=4"},
      {4, 8, 2, 3, "must be at least pipeline_model_parallel_size=4"},
      {4, 6, 2, 4, "leaves 2 microbatches in the last group"},
      {1, 4, 2, 0, "needs pipeline_model_parallel_size above 1"},
      {2, 0, 1, 0, "must be at least 1"},
      {0, 1, 1, 0, "must be at least 1"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message()
                 << "G4.10 (" << row.pp << "," << row.m << "," << row.v << "," << row.group << ")");
    ScheduleOptions options;
    options.pp = row.pp;
    options.num_microbatches = row.m;
    options.virtual_pp = row.v;
    options.microbatch_group_size = row.group;
    const absl::Status status = MakePipelineSchedule(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.message));
  }
  ScheduleOptions overlapped;
  overlapped.pp = 2;
  overlapped.num_microbatches = 4;
  overlapped.overlap_p2p_comm = true;
  EXPECT_THAT(std::string(MakePipelineSchedule(overlapped).status().message()),
              HasSubstr("overlap_p2p_comm needs virtual"));
  const ScheduleOptions flushed = {
      .pp = 2, .virtual_pp = 2, .num_microbatches = 4, .overlap_p2p_comm_warmup_flush = true};
  EXPECT_THAT(std::string(MakePipelineSchedule(flushed).status().message()),
              HasSubstr("overlap_p2p_comm_warmup_flush needs overlap_p2p_comm"));
  const ScheduleOptions alone = {.num_microbatches_with_partial_activation_checkpoints = 1};
  EXPECT_THAT(std::string(MakePipelineSchedule(alone).status().message()),
              HasSubstr("needs pipeline_model_parallel_size above 1"));
}

TEST(PipelineScheduleTest, InFlightActivationsAreBoundedByTheWarmup) {
  ScheduleOptions options;
  options.pp = 4;
  options.num_microbatches = 32;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(MaxInFlight(*MakeRankSchedule(options, rank)), 4 - rank);
  }
  options.virtual_pp = 2;
  EXPECT_EQ(MaxInFlight(*MakeRankSchedule(options, 0)), 11);
}

TEST(PipelineScheduleTest, BubbleShrinksWithMicrobatchesAndChunks) {
  ScheduleOptions options;
  EXPECT_EQ(BubbleFraction(options), 0);
  options.pp = 4;
  options.num_microbatches = 8;
  EXPECT_EQ(BubbleFraction(options), 0.375);
  options.virtual_pp = 2;
  EXPECT_EQ(BubbleFraction(options), 0.1875);
}

}  // namespace
}  // namespace muster
