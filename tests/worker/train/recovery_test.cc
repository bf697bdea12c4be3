// A rank dies at any place of a step, its place is taken by a fresh process, and the job goes on
// from what the survivors hold: with the bits of the unbroken run, and no step committed twice.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/spec/spec_json.h"
#include "tests/worker/train/faulty_communicator.h"
#include "tests/worker/train/train_test_util.h"
#include "worker/provider/builtin.h"
#include "worker/train/attempt_state.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using Plan = FaultyCommunicator::Plan;

constexpr int64_t kIterations = 4;

// A job over several epochs, whose processes live or die as a test wants.
class Cluster {
 public:
  Cluster(std::string spec, int size) : spec_(std::move(spec)), kept_(size) {
    for (auto& kept : kept_) kept = std::make_unique<AttemptState>();
  }

  // One epoch: rank r runs with plans[r], as far as there is one.
  std::vector<RankRun> RunEpoch(std::vector<std::shared_ptr<Plan>> plans = {},
                                RunOptions options = {}) {
    plans.resize(kept_.size());
    options.epoch = ++epoch_;
    options.ledger_through = ledger_through_;
    options.kept = [this](int rank) { return kept_[rank].get(); };
    options.wrap = [&](int rank, CommunicatorPtr world) -> CommunicatorPtr {
      if (plans[rank] == nullptr) return world;
      return std::make_shared<FaultyCommunicator>(world, world, plans[rank]);
    };
    std::vector<RankRun> runs = RunJob(spec_, options);
    for (const RankRun& run : runs) {
      for (const StepMessage& step : run.host->All<StepMessage>()) Note(step);
      for (const auto& restored : run.host->All<RestoredMessage>()) restored_.push_back(restored);
      for (const auto& message : run.host->All<EvaluationMessage>())
        evaluations_.insert(
            absl::StrFormat("%s %d %a", message.split, message.iteration, message.lm_loss));
    }
    return runs;
  }
  void Replace(int rank) { kept_[rank] = std::make_unique<AttemptState>(); }
  void Resize(std::string spec, int size) {
    spec_ = std::move(spec);
    while (static_cast<int>(kept_.size()) < size) kept_.push_back(std::make_unique<AttemptState>());
    kept_.resize(size);
  }
  AttemptState& kept(int rank) { return *kept_[rank]; }
  void Swap(int a, int b) { std::swap(kept_[a], kept_[b]); }

  const std::map<int64_t, StepMessage>& ledger() const { return ledger_; }
  std::vector<StepMessage> steps() const {
    std::vector<StepMessage> steps;
    for (const auto& [iteration, step] : ledger_) steps.push_back(step);
    return steps;
  }
  const std::vector<RestoredMessage>& restored() const { return restored_; }
  const std::set<std::string>& evaluations() const { return evaluations_; }
  // The newest report never arrived.
  void LoseNewestReport() {
    if (ledger_.empty()) return;
    ledger_.erase(std::prev(ledger_.end()));
    ledger_through_ = ledger_.empty() ? 0 : ledger_.rbegin()->first;
  }

 private:
  // As the coordinator does: an iteration is in it once, and a repeat must be equal.
  void Note(const StepMessage& step) {
    const auto [known, is_new] = ledger_.emplace(step.iteration, step);
    ledger_through_ = std::max(ledger_through_, step.iteration);
    if (is_new) {
      EXPECT_EQ(step.iteration, static_cast<int64_t>(ledger_.size())) << "a step is missing";
      return;
    }
    EXPECT_EQ(known->second.lm_loss, step.lm_loss);
    EXPECT_EQ(known->second.grad_norm, step.grad_norm);
    EXPECT_EQ(known->second.consumed_samples, step.consumed_samples);
  }

  std::string spec_;
  std::vector<std::unique_ptr<AttemptState>> kept_;
  int64_t epoch_ = 0, ledger_through_ = 0;
  std::map<int64_t, StepMessage> ledger_;
  std::vector<RestoredMessage> restored_;
  std::set<std::string> evaluations_;
};

std::shared_ptr<Plan> MakePlan(int64_t dies_before, int64_t loses_answer = -1) {
  auto plan = std::make_shared<Plan>();
  plan->dies_before = dies_before;
  plan->loses_answer = loses_answer;
  return plan;
}

std::string Agreement() { return "world max 5"; }

void ExpectSameSteps(const std::vector<StepMessage>& a, const std::vector<StepMessage>& b) {
  EXPECT_EQ(Scales(a), Scales(b));
  EXPECT_EQ(Skipped(a), Skipped(b));
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].lm_loss, b[i].lm_loss);
    EXPECT_EQ(a[i].grad_norm, b[i].grad_norm);
    EXPECT_EQ(a[i].consumed_samples, b[i].consumed_samples);
    EXPECT_EQ(a[i].learning_rate, b[i].learning_rate);
  }
}

// Rank `victim` dies before each operation in turn that it issues from the building of the data
// on, every `stride`-th.
void ExpectEveryDeathIsSurvived(const Settings& settings, int size, int victim, int stride = 1) {
  TrainTestRoot root;
  const std::string spec =
      root.Spec(With(settings, {absl::StrCat("training.train_iters=", kIterations),
                                absl::StrCat("resources.world_size=", size)}));
  Cluster unbroken(spec, size);
  const auto counted = MakePlan(-1);
  std::vector<std::shared_ptr<Plan>> plans(size);
  plans[victim] = counted;
  unbroken.RunEpoch(plans);
  ASSERT_THAT(unbroken.steps(), SizeIs(kIterations));
  const auto first = std::find(counted->names.begin(), counted->names.end(), "world max 1") -
                     counted->names.begin();  // of the data's building
  ASSERT_LT(first, counted->operations);
  int deaths = 0;
  for (int64_t at = first; at < counted->operations; at += stride) {
    SCOPED_TRACE(absl::StrCat("rank ", victim, " dies before operation ", at, " of ",
                              counted->operations, ", ", counted->names[at]));
    Cluster cluster(spec, size);
    plans[victim] = MakePlan(at);
    for (const RankRun& run : cluster.RunEpoch(plans)) ASSERT_FALSE(run.status.ok());
    if (at % 2 == 0) cluster.LoseNewestReport();
    cluster.Replace(victim);
    for (const RankRun& run : cluster.RunEpoch()) ASSERT_TRUE(run.status.ok()) << run.status;
    ASSERT_THAT(cluster.steps(), SizeIs(kIterations));
    ExpectSameSteps(cluster.steps(), unbroken.steps());
    EXPECT_EQ(cluster.evaluations(), unbroken.evaluations());
    ++deaths;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(deaths, 5);
}

const Settings kDropout = {"model.hidden_dropout=0.1", "model.attention_dropout=0.1"};
const Settings kEvaluates = {"evaluation.eval_interval=1", "evaluation.eval_iters=1"};

TEST(RecoveryTest, DataParallelRank0) { ExpectEveryDeathIsSurvived(kDropout + kEvaluates, 2, 0); }
TEST(RecoveryTest, DataParallelRank1) {
  ExpectEveryDeathIsSurvived(kDropout + kEvaluates + Settings{"training.bf16=true"}, 2, 1);
}
TEST(RecoveryTest, OverlappedReductions) {
  ExpectEveryDeathIsSurvived(
      kDropout + Settings{"parallel.overlap_grad_reduce=true", "parallel.ddp_bucket_size=2000"}, 2,
      1);
}
TEST(RecoveryTest, Fp16WithItsLossScale) {
  ExpectEveryDeathIsSurvived({"training.fp16=true", "training.initial_loss_scale=524288",
                              "training.hysteresis=1", "training.loss_scale_window=2"},
                             2, 0);
}
TEST(RecoveryTest, TensorParallelReplicas) {
  ExpectEveryDeathIsSurvived(kDropout + Settings{"parallel.tensor_model_parallel_size=2"}, 4, 3, 7);
}
TEST(RecoveryTest, PipelineParallelReplicas) {
  ExpectEveryDeathIsSurvived(kDropout + Settings{"parallel.pipeline_model_parallel_size=2"}, 4, 2,
                             3);
}
TEST(RecoveryTest, ExpertParallelReplicas) {
  ExpectEveryDeathIsSurvived(
      {"model.num_experts=4", "model.moe_aux_loss_coeff=0.02", "model.moe_input_jitter_eps=0.1",
       "model.moe_token_dispatcher_type=alltoall", "model.add_bias_linear=false",
       "parallel.expert_model_parallel_size=2"},
      4, 1, 5);
}

// The agreement returned on the rank that dies next and on one other: the third commits with what
// that one knows.
TEST(RecoveryTest, AStepIsFinishedByARankThatNeverHeardTheAgreement) {
  TrainTestRoot root;
  const std::string spec =
      root.Spec(kDropout + Settings{absl::StrCat("training.train_iters=", kIterations),
                                    "resources.world_size=3", "training.global_batch_size=12"});
  Cluster unbroken(spec, 3);
  const auto counted = MakePlan(-1);
  unbroken.RunEpoch({counted});
  int64_t agreement = 0;
  for (int nth = 0; nth < 2; ++agreement)
    if (counted->names[agreement] == Agreement()) ++nth;
  --agreement;
  for (const int reporter_loses : {0, 2}) {
    SCOPED_TRACE(absl::StrCat("rank ", reporter_loses, " does not hear it"));
    Cluster cluster(spec, 3);
    std::vector<std::shared_ptr<Plan>> plans(3);
    plans[1] = MakePlan(agreement + 1);
    plans[reporter_loses] = MakePlan(-1, agreement);
    cluster.RunEpoch(plans);
    ASSERT_EQ(cluster.kept(reporter_loses).state->progress.iteration, 1);
    ASSERT_TRUE(cluster.kept(reporter_loses).state->open_step->prepared);
    ASSERT_EQ(cluster.kept(2 - reporter_loses).state->progress.iteration, 2);
    cluster.Replace(1);
    for (const RankRun& run : cluster.RunEpoch()) ASSERT_TRUE(run.status.ok()) << run.status;
    ASSERT_THAT(cluster.restored(), SizeIs(1));
    EXPECT_EQ(cluster.restored()[0].iteration, 2);
    EXPECT_EQ(cluster.restored()[0].source, "live");
    ExpectSameSteps(cluster.steps(), unbroken.steps());
  }
}

// Reports that were under way when the rank that speaks for the job died with its agent.
TEST(RecoveryTest, ANewReporterTellsAllTheStepsThatTheLedgerLacks) {
  TrainTestRoot root;
  const std::string spec =
      root.Spec(kDropout + Settings{absl::StrCat("training.train_iters=", kIterations),
                                    "resources.world_size=2"});
  Cluster unbroken(spec, 2);
  const auto counted = MakePlan(-1);
  unbroken.RunEpoch({counted});
  int64_t fourth = 0;
  for (int nth = 0; nth < 4; ++fourth)
    if (counted->names[fourth] == Agreement()) ++nth;
  Cluster cluster(spec, 2);
  cluster.RunEpoch({MakePlan(fourth - 1)});
  ASSERT_THAT(cluster.steps(), SizeIs(3));
  cluster.LoseNewestReport();
  cluster.LoseNewestReport();
  cluster.Replace(0);
  for (const RankRun& run : cluster.RunEpoch()) ASSERT_TRUE(run.status.ok()) << run.status;
  EXPECT_EQ(cluster.restored()[0].iteration, 3);
  ExpectSameSteps(cluster.steps(), unbroken.steps());
}

TEST(RecoveryTest, SurvivorsOfAnotherDeathWhileTheyRestore) {
  TrainTestRoot root;
  const std::string spec =
      root.Spec(kDropout + Settings{absl::StrCat("training.train_iters=", kIterations),
                                    "resources.world_size=2"});
  Cluster unbroken(spec, 2);
  unbroken.RunEpoch();
  for (int64_t at = 0; at < 12; ++at) {
    SCOPED_TRACE(absl::StrCat("the new rank dies before operation ", at));
    Cluster cluster(spec, 2);
    cluster.RunEpoch({nullptr, MakePlan(12)});
    cluster.Replace(1);
    cluster.RunEpoch({nullptr, MakePlan(at)});
    cluster.Replace(1);
    for (const RankRun& run : cluster.RunEpoch()) ASSERT_TRUE(run.status.ok()) << run.status;
    ExpectSameSteps(cluster.steps(), unbroken.steps());
  }
}

TEST(RecoveryTest, ADirectiveMovesARankThroughAHelperWithoutLoss) {
  TrainTestRoot root;
  const std::string spec = root.Spec(
      kDropout + Settings{absl::StrCat("training.train_iters=", kIterations),
                          "resources.world_size=2", "parallel.use_distributed_optimizer=true"});
  Cluster unbroken(spec, 2);
  unbroken.RunEpoch();
  Cluster cluster(spec, 2);
  const auto runs =
      cluster.RunEpoch({}, {.script = [](int, ScriptedHost& host) {
                         host.deliveries[2] = {{1, Directive::Kind::kReform, "rank 1 moves"}};
                       }});
  for (const RankRun& run : runs) ASSERT_TRUE(run.yielded) << run.status;
  // Its old process helps, a new one takes its place.
  cluster.Resize(spec, 3);
  cluster.Swap(1, 2);
  const auto moved = cluster.RunEpoch({}, {.directives_through = 1, .num_helpers = 1});
  for (const RankRun& run : moved) ASSERT_TRUE(run.status.ok()) << run.status;
  EXPECT_TRUE(moved[2].helped);
  ASSERT_THAT(cluster.restored(), SizeIs(1));
  EXPECT_EQ(cluster.restored()[0].iteration, 2);
  EXPECT_EQ(cluster.restored()[0].source, "live");
  ExpectSameSteps(cluster.steps(), unbroken.steps());
}

// Layer-wise Muon: ranks update different parameters, and an epoch may end when each has its own of
// a step and the others' of the step before.
TEST(RecoveryTest, LayerWiseMuonMovesARankInTheMiddleOfAStep) {
  for (const char* dtype : {"training.bf16=false", "training.bf16=true"}) {
    TrainTestRoot root;
    const std::string spec =
        root.Spec(kDropout + Settings{absl::StrCat("training.train_iters=", kIterations), dtype,
                                      "resources.world_size=2", "optimizer.optimizer=dist_muon"});
    Cluster unbroken(spec, 2);
    const auto counted = MakePlan(-1);
    unbroken.RunEpoch({nullptr, counted});
    int live = 0;
    for (int64_t at = 10; at < counted->operations; ++at) {
      SCOPED_TRACE(absl::StrCat(dtype, ", operation ", at, " of ", counted->operations, ", ",
                                counted->names[at]));
      Cluster cluster(spec, 2);
      cluster.RunEpoch({nullptr, MakePlan(at)});
      // The process whose groups failed helps, and another one takes its place.
      cluster.Resize(spec, 3);
      cluster.Swap(1, 2);
      for (const RankRun& run : cluster.RunEpoch({}, {.num_helpers = 1}))
        ASSERT_TRUE(run.status.ok()) << run.status;
      ASSERT_THAT(cluster.restored(), SizeIs(1));
      live += cluster.restored()[0].source == "live" ? 1 : 0;
      ASSERT_THAT(cluster.steps(), SizeIs(kIterations));
      ExpectSameSteps(cluster.steps(), unbroken.steps());
      if (HasFailure()) return;
    }
    EXPECT_GT(live, 10);
  }
}

// Whatever a new rank's memory held before: a value that nobody gave would be a NaN here.
TEST(RecoveryTest, ANewRankIsGivenEveryElementOfItsModel) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
  for (const Settings& layout : {Settings{}, Settings{"parallel.pipeline_model_parallel_size=2"},
                                 Settings{"parallel.tensor_model_parallel_size=2",
                                          "model.swiglu=true", "model.ffn_hidden_size=32"},
                                 Settings{"model.num_experts=4", "model.add_bias_linear=false",
                                          "model.moe_token_dispatcher_type=alltoall"}}) {
    SCOPED_TRACE(layout.empty() ? "data parallel" : layout[0]);
    TrainTestRoot root;
    const std::string spec =
        root.Spec(kDropout + layout +
                  Settings{absl::StrCat("training.train_iters=", kIterations), "training.bf16=true",
                           "resources.world_size=4", "model.make_vocab_size_divisible_by=64"});
    Cluster unbroken(spec, 4);
    const auto counted = MakePlan(-1);
    unbroken.RunEpoch({counted});
    int64_t third = 0;
    for (int nth = 0; nth < 3; ++third)
      if (counted->names[third] == Agreement()) ++nth;
    Cluster cluster(spec, 4);
    cluster.RunEpoch({nullptr, MakePlan(third)});
    cluster.Replace(1);
    for (const RankRun& run : cluster.RunEpoch()) ASSERT_TRUE(run.status.ok()) << run.status;
    ASSERT_THAT(cluster.restored(), SizeIs(1));
    EXPECT_EQ(cluster.restored()[0].source, "live");
    ExpectSameSteps(cluster.steps(), unbroken.steps());
  }
}

// What begins anew begins as ever, whatever epoch it is.
TEST(RecoveryTest, WithoutAStateTheParametersAreDrawnAsInTheFirstEpoch) {
  TrainTestRoot root;
  const std::string spec =
      root.Spec(kDropout + Settings{absl::StrCat("training.train_iters=", kIterations),
                                    "resources.world_size=2"});
  Cluster unbroken(spec, 2);
  unbroken.RunEpoch();
  Cluster cluster(spec, 2);
  cluster.RunEpoch({nullptr, MakePlan(3)});
  for (const int rank : {0, 1}) cluster.Replace(rank);
  for (const RankRun& run : cluster.RunEpoch()) ASSERT_TRUE(run.status.ok()) << run.status;
  ExpectSameSteps(cluster.steps(), unbroken.steps());
}

// A rank dies at any place of a step at whose end the job is to leave, its last save included.
TEST(RecoveryTest, AJobThatIsToLeaveIsNotTrainedOn) {
  TrainTestRoot root;
  const auto spec_of = [&](const std::string& folder) {
    return root.Spec(kDropout + Settings{absl::StrCat("training.train_iters=", kIterations),
                                         "training.exit_interval=2", "resources.world_size=2",
                                         absl::StrCat("checkpoint.save=", root / folder),
                                         TrainTestRoot::kNoInterval});
  };
  Cluster unbroken(spec_of("unbroken"), 2);
  const auto counted = MakePlan(-1);
  unbroken.RunEpoch({nullptr, counted});
  ASSERT_THAT(unbroken.steps(), SizeIs(2));
  int64_t second = 0;
  for (int nth = 0; nth < 2; ++second)
    if (counted->names[second] == Agreement()) ++nth;
  ASSERT_LT(second + 3, counted->operations) << "the save is among them";
  for (int64_t at = second - 2; at < counted->operations; ++at) {
    SCOPED_TRACE(
        absl::StrCat("operation ", at, " of ", counted->operations, ", ", counted->names[at]));
    const std::string folder = absl::StrCat("broken", at);
    Cluster cluster(spec_of(folder), 2);
    cluster.RunEpoch({nullptr, MakePlan(at)});
    cluster.Replace(1);
    for (const RankRun& run : cluster.RunEpoch()) {
      ASSERT_TRUE(run.status.ok()) << run.status;
      EXPECT_EQ(run.exit_code, 0);
      EXPECT_THAT(run.reason, HasSubstr("exit_interval 2"));
    }
    ExpectSameSteps(cluster.steps(), unbroken.steps());
    EXPECT_EQ(TensorFiles(root / (folder + "/iter_0000002")),
              TensorFiles(root / "unbroken/iter_0000002"));
    if (HasFailure()) return;
  }
}

TEST(RecoveryTest, DataThatWasOpenedWhileWaitingIsUsed) {
  TrainTestRoot root;
  const std::string spec =
      root.Spec({absl::StrCat("training.train_iters=", kIterations), "resources.world_size=2"});
  Cluster unbroken(spec, 2);
  unbroken.RunEpoch();
  Cluster cluster(spec, 2);
  cluster.RunEpoch({nullptr, MakePlan(12)});
  cluster.Replace(1);
  ProviderRegistry providers;
  RegisterBuiltinProviders(providers);
  std::unique_ptr<WarmData> warm =
      WarmData::Begin(ParseJobSpec(spec).spec, providers, /*build_cache=*/false);
  ASSERT_NE(warm, nullptr);
  warm->Await();
  cluster.kept(1).warm_data = std::move(warm);
  // Nobody could open them now.
  for (const char* file : {"data.bin", "data.idx"}) std::filesystem::remove(root / file);
  for (const RankRun& run : cluster.RunEpoch()) ASSERT_TRUE(run.status.ok()) << run.status;
  ExpectSameSteps(cluster.steps(), unbroken.steps());
}

TEST(RecoveryTest, DataOfOtherNumbersOfSamplesOrThatCannotBeOpenedIsOpenedAgain) {
  TrainTestRoot root;
  const std::string spec = root.Spec();
  ProviderRegistry providers;
  RegisterBuiltinProviders(providers);
  for (const Settings& other : {Settings{"training.train_iters=7"},
                                Settings{absl::StrCat("data.data_path=[\"", root / "no", "\"]")}}) {
    AttemptState kept;
    kept.warm_data = WarmData::Begin(ParseJobSpec(root.Spec(other)).spec, providers, false);
    const auto runs = RunJob(spec, {.kept = [&](int) { return &kept; }});
    ExpectSameSteps(StepsOf(runs), Train(spec));
  }
}

TEST(RecoveryTest, FewerAndMoreReplicasGoOnFromLiveState) {
  TrainTestRoot root;
  const auto spec = [&](int size, const Settings& more) {
    return root.Spec(kDropout + more +
                     Settings{absl::StrCat("training.train_iters=", kIterations),
                              "model.hidden_dropout=0", "model.attention_dropout=0",
                              absl::StrCat("resources.world_size=", size)});
  };
  Cluster unbroken(spec(2, {}), 2);
  unbroken.RunEpoch();
  Cluster cluster(spec(2, {}), 2);
  cluster.RunEpoch({nullptr, MakePlan(12)});
  ASSERT_GE(cluster.ledger().size(), 1);
  const auto reform = [](int, ScriptedHost& host) {
    host.deliveries[1] = {{1, Directive::Kind::kReform, "a worker is back"}};
  };
  cluster.Resize(spec(1, {}), 1);
  for (const RankRun& run : cluster.RunEpoch({}, {.script = reform}))
    ASSERT_TRUE(run.yielded) << run.status;
  cluster.Resize(spec(2, {}), 2);
  for (const RankRun& run : cluster.RunEpoch({}, {.directives_through = 1}))
    ASSERT_TRUE(run.status.ok()) << run.status;
  ExpectSameCurve(cluster.steps(), unbroken.steps(), 1e-5);
}

TEST(RecoveryTest, ThePartsOfADistributedOptimizerComeFromTheCheckpointWhenNobodyHoldsThem) {
  TrainTestRoot root;
  const std::string spec = root.Spec(
      kDropout + Settings{absl::StrCat("training.train_iters=", kIterations),
                          "resources.world_size=2", "parallel.use_distributed_optimizer=true",
                          absl::StrCat("checkpoint.save=", root / "ckpt"),
                          "checkpoint.save_interval=2"});
  Cluster unbroken(spec, 2);
  const auto counted = MakePlan(-1);
  unbroken.RunEpoch({nullptr, counted});
  int64_t third = 0;
  for (int nth = 0; nth < 3; ++third)
    if (counted->names[third] == Agreement()) ++nth;
  Cluster cluster(spec, 2);
  cluster.RunEpoch({nullptr, MakePlan(third)});
  cluster.Replace(1);
  for (const RankRun& run : cluster.RunEpoch()) ASSERT_TRUE(run.status.ok()) << run.status;
  ASSERT_THAT(cluster.restored(), SizeIs(1));
  EXPECT_EQ(cluster.restored()[0].iteration, 2);
  EXPECT_EQ(cluster.restored()[0].source, "checkpoint");
  ExpectSameSteps(cluster.steps(), unbroken.steps());
}

TEST(RecoveryTest, NothingIsLostWhenOnlyTheGroupsFail) {
  for (const Settings& sharding :
       {Settings{"parallel.use_distributed_optimizer=true", "parallel.overlap_grad_reduce=true",
                 "parallel.overlap_param_gather=true", "parallel.ddp_bucket_size=2000"},
        Settings{"parallel.use_megatron_fsdp=true",
                 "parallel.data_parallel_sharding_strategy=optim_grads_params"},
        Settings{"parallel.use_torch_fsdp2=true",
                 "model.untie_embeddings_and_output_weights=true"}}) {
    SCOPED_TRACE(sharding[0]);
    TrainTestRoot root;
    const std::string spec = root.Spec(kDropout + sharding +
                                       Settings{absl::StrCat("training.train_iters=", kIterations),
                                                "training.bf16=true", "resources.world_size=2"});
    Cluster unbroken(spec, 2);
    const auto counted = MakePlan(-1);
    unbroken.RunEpoch({nullptr, counted});
    for (int64_t at = 10; at < counted->operations; at += 5) {
      SCOPED_TRACE(
          absl::StrCat("operation ", at, " of ", counted->operations, ", ", counted->names[at]));
      Cluster cluster(spec, 2);
      cluster.RunEpoch({nullptr, MakePlan(at)});
      for (const RankRun& run : cluster.RunEpoch()) ASSERT_TRUE(run.status.ok()) << run.status;
      ASSERT_THAT(cluster.restored(), SizeIs(1));
      if (cluster.restored()[0].iteration > 0) {
        EXPECT_EQ(cluster.restored()[0].source, "live");
      }
      ASSERT_THAT(cluster.steps(), SizeIs(kIterations));
      ExpectSameSteps(cluster.steps(), unbroken.steps());
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace muster
