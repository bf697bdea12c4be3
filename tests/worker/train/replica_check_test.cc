// training.check_weight_hash_across_dp_replicas_interval.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/worker/parallel/logging_communicator.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

std::string Every(int iterations) {
  return absl::StrCat("training.check_weight_hash_across_dp_replicas_interval=", iterations);
}

// Forward steps other than GPT's come from a plugin; the test registers its own.
const std::vector<std::string> kDrift = {"plugin=/opt/muster/plugins/none.so",
                                         "model.forward_step=drift"};
constexpr char kDrifted[] = "decoder.final_layernorm.bias";

std::string MessageOf(const RankRun& rank) { return std::string(rank.status.message()); }

// 2 microbatches a step: the third is in step 2, which nobody checks; step 3 is checked.
TEST(ReplicaCheckTest, AReplicaThatDriftedIsNamedAtTheNextCheck) {
  TrainTestRoot root;
  const auto settings = With(kDrift, {"resources.world_size=2"});
  const auto ranks =
      RunJob(root.Spec(With(settings, {Every(3)})), {.nan_rank = 1, .nan_microbatch = 3});
  for (const RankRun& rank : ranks) {
    EXPECT_EQ(rank.status.code(), absl::StatusCode::kInternal) << rank.status;
    EXPECT_THAT(MessageOf(rank),
                AllOf(HasSubstr("after iteration 3"), HasSubstr(kDrifted),
                      HasSubstr("rank 0 with SHA-1 "), HasSubstr("rank 1 with SHA-1 ")));
  }
  EXPECT_THAT(ranks[0].host->All<StepMessage>(), SizeIs(3));
  // Nobody notices without it.
  EXPECT_THAT(Train(root.Spec(settings), {.nan_rank = 1, .nan_microbatch = 3}), SizeIs(6));
}

// Ranks 1 and 3 are replicas of each other, as are 0 and 2.
TEST(ReplicaCheckTest, RanksWhoseOwnReplicasAgreeFailToo) {
  TrainTestRoot root;
  const auto ranks = RunJob(
      root.Spec(With(
          kDrift, {"resources.world_size=4", "parallel.tensor_model_parallel_size=2", Every(1)})),
      {.nan_rank = 3, .nan_microbatch = 1});
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE(rank);
    EXPECT_EQ(ranks[rank].status.code(), absl::StatusCode::kInternal) << ranks[rank].status;
    EXPECT_THAT(MessageOf(ranks[rank]), HasSubstr("after iteration 1"));
  }
  for (const size_t rank : {1, 3}) {
    EXPECT_THAT(MessageOf(ranks[rank]),
                AllOf(HasSubstr(kDrifted), HasSubstr("rank 1 with"), HasSubstr("rank 3 with")));
  }
  for (const size_t rank : {0, 2}) EXPECT_THAT(MessageOf(ranks[rank]), Not(HasSubstr(kDrifted)));
}

// What a rank does not update is old until it is gathered: the check gathers first, and training
// goes on as if it had not been there.
TEST(ReplicaCheckTest, SoundReplicasPassAndTrainOnUnchanged) {
  TrainTestRoot root;
  const std::vector<std::vector<std::string>> layouts = {
      {"resources.world_size=2"},
      {"resources.world_size=2", "parallel.use_distributed_optimizer=true"},
      {"resources.world_size=2", "parallel.use_distributed_optimizer=true",
       "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true",
       "parallel.ddp_bucket_size=2000"},
      {"resources.world_size=4", "parallel.tensor_model_parallel_size=2", "training.bf16=true",
       "optimizer.optimizer=dist_muon"}};
  for (const std::vector<std::string>& layout : layouts) {
    SCOPED_TRACE(layout.back());
    ExpectSameCurve(Train(root.Spec(With(layout, {Every(1)}))), Train(root.Spec(layout)), 0);
  }
}

TEST(ReplicaCheckTest, ChecksBeforeTrainingAndAtMultiplesOfTheInterval) {
  TrainTestRoot root;
  const auto gathers = [&](const std::vector<std::string>& settings) {
    auto log = std::make_shared<std::vector<std::string>>();
    ReporterOf(
        RunJob(root.Spec(With(settings, {"resources.world_size=2"})),
               {.wrap = [&](int rank,
                            std::shared_ptr<Communicator> world) -> std::shared_ptr<Communicator> {
                 if (rank != 0) return world;
                 return std::make_shared<LoggingCommunicator>(std::move(world), log);
               }}));
    int count = 0;
    for (const std::string& event : *log)
      count += absl::StartsWith(event, "dp") && absl::StrContains(event, " all_gather ");
    return count;
  };
  EXPECT_EQ(gathers({}), 0);
  EXPECT_EQ(gathers({Every(4)}), 2);  // of 6 iterations: before them, after the fourth
  EXPECT_EQ(gathers({Every(3)}), 3);
  EXPECT_EQ(gathers({Every(7)}), 1);
}

}  // namespace
}  // namespace muster
