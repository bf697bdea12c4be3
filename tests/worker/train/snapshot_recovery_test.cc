// A rank dies whose state nobody else holds live: the job goes on from snapshots, with the bits of
// the unbroken run and at most snapshot_interval steps redone.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/snapshot/memory_file.h"
#include "tests/worker/train/train_test_util.h"
#include "worker/snapshot/snapshotter.h"
#include "worker/train/attempt_state.h"

namespace muster {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::SizeIs;

constexpr int64_t kIterations = 9, kInterval = 2;

// Ranks whose processes die and are replaced, on workers whose memories outlive them.
class Workers {
 public:
  Workers(std::string spec, int size) : spec_(std::move(spec)), files_(size), kept_(size) {
    for (int rank = 0; rank < size; ++rank) {
      files_[rank] = std::make_unique<MemoryFile>();
      NewProcess(rank);
    }
  }

  // The process of `rank` is another one, which finds the memory of its worker.
  void NewProcess(int rank) {
    kept_[rank] = std::make_unique<AttemptState>();
    kept_[rank]->snapshotter = std::make_unique<Snapshotter>(SnapshotterOptions{
        .job_id = "job-1", .memory = files_[rank]->path(), .interval = kInterval});
  }
  // With its node: memory and process are gone.
  void NewNode(int rank) {
    kept_[rank].reset();
    files_[rank] = std::make_unique<MemoryFile>();
    NewProcess(rank);
  }

  // An epoch; `victim` dies in the agreement of step `dies_in` (counted in this epoch), if any.
  void RunEpoch(int victim = -1, int64_t dies_in = 0, std::function<int(int)> buddy = {}) {
    const auto script = [&](int rank, ScriptedHost& host) {
      // Copies end before the next step, so that what was begun is there.
      for (int64_t step = 1; step <= kIterations; ++step)
        host.before_end_of[step] = [this, rank] { kept_[rank]->snapshotter->AwaitIdle(); };
      if (rank == victim) {
        host.before_end_of[dies_in] = [this, rank] {
          kept_[rank]->snapshotter->AwaitIdle();
          throw std::runtime_error("killed by the test");
        };
      }
    };
    const std::vector<RankRun> runs =
        RunJob(spec_, {.script = script,
                       .kept = [this](int rank) { return kept_[rank].get(); },
                       .epoch = ++epoch_,
                       .ledger_through = ledger_through_,
                       .buddy = std::move(buddy)});
    steps_run_ = 0;
    for (const RankRun& run : runs) {
      EXPECT_EQ(run.status.ok(), victim < 0) << run.status;
      for (const StepMessage& step : run.host->All<StepMessage>()) Note(step);
      for (const EvaluationMessage& evaluation : run.host->All<EvaluationMessage>())
        evaluations_[evaluation.split + absl::StrCat(evaluation.iteration)].insert(
            evaluation.lm_loss);
      for (const auto& message : run.host->All<RestoredMessage>()) restored_ = message;
      for (const auto& message : run.host->All<EventMessage>()) events_.push_back(message.text);
    }
  }

  std::vector<StepMessage> steps() const {
    std::vector<StepMessage> steps;
    for (const auto& [iteration, step] : ledger_) steps.push_back(step);
    return steps;
  }
  Snapshotter& snapshots(int rank) { return *kept_[rank]->snapshotter; }
  const MemoryFile& file(int rank) const { return *files_[rank]; }
  const RestoredMessage& restored() const { return restored_; }
  const std::vector<std::string>& events() const { return events_; }
  // All losses of each: one that is done again has the same.
  using Evaluations = std::map<std::string, std::set<double>>;
  const Evaluations& evaluations() const { return evaluations_; }
  int64_t steps_run() const { return steps_run_; }  // in the newest epoch
  int64_t ledger_through() const { return ledger_through_; }

 private:
  // An iteration that is redone has the same bits.
  void Note(const StepMessage& step) {
    ++steps_run_;
    ledger_through_ = std::max(ledger_through_, step.iteration);
    const auto [known, is_new] = ledger_.emplace(step.iteration, step);
    if (is_new) return;
    EXPECT_EQ(known->second.lm_loss, step.lm_loss) << "iteration " << step.iteration;
    EXPECT_EQ(known->second.grad_norm, step.grad_norm) << "iteration " << step.iteration;
    EXPECT_EQ(known->second.consumed_samples, step.consumed_samples);
  }

  const std::string spec_;
  std::vector<std::unique_ptr<MemoryFile>> files_;
  std::vector<std::unique_ptr<AttemptState>> kept_;
  int64_t epoch_ = 0, ledger_through_ = 0, steps_run_ = 0;
  std::map<int64_t, StepMessage> ledger_;
  RestoredMessage restored_;
  std::vector<std::string> events_;
  Evaluations evaluations_;
};

std::string SpecOf(const TrainTestRoot& root, const Settings& settings) {
  return root.Spec(
      With(Settings{"model.hidden_dropout=0.1", "model.attention_dropout=0.1",
                    "resources.world_size=2", absl::StrCat("training.train_iters=", kIterations),
                    absl::StrCat("recovery.snapshot_interval=", kInterval)},
           settings));
}

// Dies in step 8, with 7 committed; generation 6 is complete on all by then.
constexpr int64_t kDiesIn = 8, kNewest = 6;

void ExpectRestoredFromSnapshots(const Settings& settings, int size = 2, int victim = 1) {
  TrainTestRoot root;
  const std::string spec = SpecOf(root, settings);
  const auto unbroken = Train(spec);
  ASSERT_THAT(unbroken, SizeIs(kIterations));
  Workers workers(spec, size);
  workers.RunEpoch(victim, kDiesIn);
  EXPECT_EQ(workers.ledger_through(), kDiesIn - 1);
  workers.NewProcess(victim);
  workers.RunEpoch();
  EXPECT_EQ(workers.restored().source, "snapshot") << workers.restored().text;
  EXPECT_EQ(workers.restored().iteration, kNewest);
  EXPECT_EQ(workers.steps_run(), kIterations - kNewest) << "one step is run again";
  ExpectSameCurve(workers.steps(), unbroken, 0);
}

TEST(SnapshotRecoveryTest, DistributedOptimizer) {
  ExpectRestoredFromSnapshots({"parallel.use_distributed_optimizer=true"});
}
TEST(SnapshotRecoveryTest, DistributedOptimizerBf16ThatGathersBehindForward) {
  ExpectRestoredFromSnapshots(
      {"training.bf16=true", "parallel.use_distributed_optimizer=true",
       "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true",
       "parallel.ddp_bucket_size=2000"},
      2, 0);
}
TEST(SnapshotRecoveryTest, LayerWiseMuon) {
  ExpectRestoredFromSnapshots({"optimizer.optimizer=dist_muon"});
}
TEST(SnapshotRecoveryTest, LayerWiseMuonBf16) {
  ExpectRestoredFromSnapshots({"optimizer.optimizer=dist_muon", "training.bf16=true"}, 2, 0);
}
TEST(SnapshotRecoveryTest, PipelineParallel) {
  ExpectRestoredFromSnapshots({"parallel.pipeline_model_parallel_size=2"});
}
// Whoever lives has not seen the report of the boundary's evaluation, so all do it again: also the
// new process, whose snapshot was taken after it, on the samples that were evaluated there.
TEST(SnapshotRecoveryTest, AnEvaluationThatIsDoneAgainHasTheSameSamples) {
  TrainTestRoot root;
  const std::string spec = SpecOf(root, {"parallel.pipeline_model_parallel_size=2",
                                         "evaluation.eval_interval=2", "evaluation.eval_iters=1"});
  Workers unbroken(spec, 2);
  unbroken.RunEpoch();
  ASSERT_THAT(unbroken.evaluations(), SizeIs(testing::Ge(4u)));
  Workers workers(spec, 2);
  workers.RunEpoch(/*victim=*/1, /*dies_in=*/7);
  workers.NewProcess(1);
  workers.RunEpoch();
  EXPECT_EQ(workers.restored().iteration, 6);
  EXPECT_EQ(workers.evaluations(), unbroken.evaluations());
  ExpectSameCurve(workers.steps(), unbroken.steps(), 0);
  // And once more, before the new process has committed a step of its own.
  Workers twice(spec, 2);
  twice.RunEpoch(1, 7);
  twice.NewProcess(1);
  twice.RunEpoch(0, 1);
  twice.NewProcess(0);
  twice.RunEpoch();
  EXPECT_EQ(twice.evaluations(), unbroken.evaluations());
  ExpectSameCurve(twice.steps(), unbroken.steps(), 0);
}
TEST(SnapshotRecoveryTest, TensorParallel) {
  ExpectRestoredFromSnapshots({"parallel.tensor_model_parallel_size=2"}, 2, 0);
}
TEST(SnapshotRecoveryTest, FullySharded) {
  ExpectRestoredFromSnapshots({"training.bf16=true", "parallel.use_megatron_fsdp=true",
                               "parallel.data_parallel_sharding_strategy=optim_grads_params"});
}
TEST(SnapshotRecoveryTest, ShardedAsTorchDoes) {
  ExpectRestoredFromSnapshots(
      {"parallel.use_torch_fsdp2=true", "model.untie_embeddings_and_output_weights=true"});
}
TEST(SnapshotRecoveryTest, ExpertParallel) {
  ExpectRestoredFromSnapshots(
      {"model.num_experts=4", "parallel.expert_model_parallel_size=2",
       "model.add_bias_linear=false", "model.moe_router_score_function=sigmoid",
       "model.moe_router_enable_expert_bias=true", "model.moe_token_dispatcher_type=alltoall"});
}
TEST(SnapshotRecoveryTest, Fp16WithItsLossScale) {
  ExpectRestoredFromSnapshots({"training.fp16=true", "training.initial_loss_scale=4096",
                               "training.loss_scale_window=2",
                               "parallel.use_distributed_optimizer=true"});
}

// All processes at once: a power cut of the trainers, not of the agents.
TEST(SnapshotRecoveryTest, AllProcessesAtOnce) {
  TrainTestRoot root;
  const std::string spec = SpecOf(root, {});
  Workers workers(spec, 2);
  workers.RunEpoch(0, kDiesIn);
  for (const int rank : {0, 1}) workers.NewProcess(rank);
  workers.RunEpoch();
  EXPECT_EQ(workers.restored().source, "snapshot");
  ExpectSameCurve(workers.steps(), Train(spec), 0);
}

const auto kBuddy = [](int rank) { return 1 - rank; };
const Settings kSharded = {"parallel.use_distributed_optimizer=true"};

TEST(SnapshotRecoveryTest, LostNodeIsRestoredFromItsBuddy) {
  TrainTestRoot root;
  const std::string spec = SpecOf(root, kSharded);
  Workers workers(spec, 2);
  workers.RunEpoch(1, kDiesIn, kBuddy);
  workers.NewNode(1);
  workers.RunEpoch(-1, 0, kBuddy);
  EXPECT_EQ(workers.restored().source, "snapshot") << workers.restored().text;
  EXPECT_EQ(workers.restored().iteration, kNewest);
  ExpectSameCurve(workers.steps(), Train(spec), 0);
}

// The pipeline's group is all ranks, too: copies travel while its messages do.
TEST(SnapshotRecoveryTest, CopiesDoNotMeetThePipelinesMessages) {
  TrainTestRoot root;
  const std::string spec = SpecOf(root, {"parallel.pipeline_model_parallel_size=2"});
  Workers workers(spec, 2);
  workers.RunEpoch(0, kDiesIn, kBuddy);
  workers.NewNode(0);
  workers.RunEpoch(-1, 0, kBuddy);
  EXPECT_EQ(workers.restored().source, "snapshot") << workers.restored().text;
  ExpectSameCurve(workers.steps(), Train(spec), 0);
}

// The newest generation of `owner` in the memory of `keeper`.
SnapshotSlot NewestOf(Workers& workers, int keeper, int owner) {
  for (const HeldSnapshot& held : workers.snapshots(keeper).List(keeper)) {
    if (held.slot.rank == owner) return held.slot;
  }
  ADD_FAILURE() << "there is none";
  return {};
}
void Damage(Workers& workers, int keeper, SnapshotSlot slot) {
  const auto memory = workers.file(keeper).Open();
  const auto view = memory->Map(slot);
  ASSERT_TRUE(view.ok());
  view->content[view->stamp.content_bytes - 100] ^= 1;
}

TEST(SnapshotRecoveryTest, DamagedSnapshotIsReplacedByTheBuddysCopy) {
  TrainTestRoot root;
  const std::string spec = SpecOf(root, kSharded);
  Workers workers(spec, 2);
  workers.RunEpoch(1, kDiesIn, kBuddy);
  workers.NewProcess(1);
  Damage(workers, 1, NewestOf(workers, 1, 1));
  workers.RunEpoch(-1, 0, kBuddy);
  EXPECT_EQ(workers.restored().source, "snapshot");
  EXPECT_EQ(workers.restored().iteration, kNewest);
  EXPECT_THAT(workers.events(), Contains(HasSubstr("rank 1: the snapshot of rank 1 of iteration 6 "
                                                   "is damaged")));
  ExpectSameCurve(workers.steps(), Train(spec), 0);
}

TEST(SnapshotRecoveryTest, WithoutACopyTheGenerationBeforeItServes) {
  TrainTestRoot root;
  const std::string spec = SpecOf(root, kSharded);
  Workers workers(spec, 2);
  workers.RunEpoch(1, kDiesIn);
  workers.NewProcess(1);
  Damage(workers, 1, NewestOf(workers, 1, 1));
  workers.RunEpoch();
  EXPECT_EQ(workers.restored().source, "snapshot");
  EXPECT_EQ(workers.restored().iteration, kNewest - kInterval);
  ExpectSameCurve(workers.steps(), Train(spec), 0);
}

TEST(SnapshotRecoveryTest, AllDamagedTheCheckpointServes) {
  TrainTestRoot root;
  const std::string spec =
      SpecOf(root, kSharded + Settings{absl::StrCat("checkpoint.save=", root / "saved"),
                                       "checkpoint.save_interval=3"});
  Workers workers(spec, 2);
  workers.RunEpoch(1, 6);  // 5 committed, 3 saved
  workers.NewProcess(1);
  const auto held = workers.snapshots(1).List(1);
  EXPECT_FALSE(held.empty());
  for (const HeldSnapshot& one : held) Damage(workers, 1, one.slot);
  workers.RunEpoch();
  EXPECT_EQ(workers.restored().source, "checkpoint");
  EXPECT_EQ(workers.restored().iteration, 3);
  ExpectSameCurve(workers.steps(), Train(SpecOf(root, kSharded)), 0);
}

// One death after the other, each soon after the recovery from the one before.
TEST(SnapshotRecoveryTest, DeathAfterDeath) {
  TrainTestRoot root;
  const std::string spec = SpecOf(root, kSharded);
  Workers workers(spec, 2);
  workers.RunEpoch(1, 4);
  for (int round = 0; round < 3; ++round) {
    const int victim = round % 2;
    workers.NewProcess(victim == 0 ? 1 : 0);
    workers.RunEpoch(victim, 2);
  }
  workers.NewProcess(0);
  workers.RunEpoch();
  ExpectSameCurve(workers.steps(), Train(spec), 0);
}

}  // namespace
}  // namespace muster
