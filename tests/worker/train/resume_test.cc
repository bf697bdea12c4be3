// Stop and resume: the same bits as a run that never stopped; and what must not load.

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/worker/train/train_test_util.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

// Settings that save under root/folder, only when told to or at the end, and load from there.
std::vector<std::string> SaveAndLoad(const TrainTestRoot& root, const std::string& folder) {
  return {absl::StrCat("checkpoint.save=", root / folder),
          absl::StrCat("checkpoint.load=", root / folder), "checkpoint.save_interval=1000"};
}

std::string Folder(const TrainTestRoot& root, const std::string& name, int64_t iteration) {
  return absl::StrCat(root / name, "/iter_", iteration < 10 ? "000000" : "00000", iteration);
}

std::vector<std::string> Evaluations(const std::vector<RankRun>& ranks) {
  std::vector<std::string> out;
  for (const EvaluationMessage& message : ReporterOf(ranks).All<EvaluationMessage>()) {
    out.push_back(
        absl::StrFormat("%s %d %.17g", message.split, message.iteration, message.lm_loss));
  }
  return out;
}

constexpr int64_t kIterations = 5;

// For each k: a run stopped at k and resumed equals the unbroken one, and so do its weights,
// moments and random states. Odd k stop by exit_interval, even ones by a directive.
void ExpectResumeIsExact(const std::vector<std::string>& settings) {
  TrainTestRoot root;
  const auto base = With(settings, {absl::StrCat("training.train_iters=", kIterations)});
  const auto unbroken_ranks = RunJob(root.Spec(With(base, SaveAndLoad(root, "unbroken"))));
  const auto unbroken = StepsOf(unbroken_ranks);
  ASSERT_THAT(unbroken, SizeIs(kIterations));
  const auto final_files = TensorFiles(Folder(root, "unbroken", kIterations));
  for (int64_t k = 1; k < kIterations; ++k) {
    SCOPED_TRACE(absl::StrCat("stopped at ", k));
    const std::string name = absl::StrCat("broken", k);
    const auto broken = With(base, SaveAndLoad(root, name));
    std::vector<RankRun> first;
    if (k % 2 == 1) {
      first = RunJob(root.Spec(With(broken, {absl::StrCat("training.exit_interval=", k)})));
    } else {
      first = RunJob(
          root.Spec(broken), {.script = [k](int, ScriptedHost& host) {
            host.deliveries[k] = {{1, Directive::Kind::kCheckpointAndStop, "the test stops it"}};
          }});
    }
    auto steps = StepsOf(first);
    ASSERT_THAT(steps, SizeIs(k));
    ASSERT_TRUE(fs::exists(Folder(root, name, k)));
    const auto second = RunJob(root.Spec(broken));
    for (const StepMessage& step : StepsOf(second)) steps.push_back(step);
    ExpectSameCurve(steps, unbroken, 0);
    auto evaluations = Evaluations(first);
    for (const std::string& evaluation : Evaluations(second)) evaluations.push_back(evaluation);
    EXPECT_EQ(evaluations, Evaluations(unbroken_ranks));
    EXPECT_EQ(steps.back().num_floating_point_operations_so_far,
              unbroken.back().num_floating_point_operations_so_far);
    EXPECT_TRUE(TensorFiles(Folder(root, name, kIterations)) == final_files);
  }
}

const std::vector<std::string> kDropout = {"model.hidden_dropout=0.1",
                                           "model.attention_dropout=0.1"};

TEST(ResumeTest, AdamFp32) { ExpectResumeIsExact(kDropout); }
TEST(ResumeTest, AdamBf16OnTwoRanks) {
  ExpectResumeIsExact(With(kDropout, {"training.bf16=true", "resources.world_size=2"}));
}
TEST(ResumeTest, SgdFp32OnTwoRanks) {
  ExpectResumeIsExact(With(kDropout, {"optimizer.optimizer=sgd", "resources.world_size=2"}));
}
TEST(ResumeTest, SgdBf16) {
  ExpectResumeIsExact(With(kDropout, {"optimizer.optimizer=sgd", "training.bf16=true"}));
}
TEST(ResumeTest, Fp16WithItsLossScale) {
  ExpectResumeIsExact(
      {"training.fp16=true", "training.initial_loss_scale=65536", "training.loss_scale_window=2"});
}
TEST(ResumeTest, TensorAndPipelineParallel) {
  ExpectResumeIsExact(With(kDropout, {"training.bf16=true", "resources.world_size=4",
                                      "parallel.tensor_model_parallel_size=2",
                                      "parallel.pipeline_model_parallel_size=2"}));
}
TEST(ResumeTest, VirtualStages) {
  ExpectResumeIsExact(With(kDropout, {"model.num_layers=4", "resources.world_size=2",
                                      "parallel.pipeline_model_parallel_size=2",
                                      "parallel.virtual_pipeline_model_parallel_size=2",
                                      "evaluation.eval_interval=2", "evaluation.eval_iters=1"}));
}
TEST(ResumeTest, DistributedOptimizerThatGathersBehindForward) {
  ExpectResumeIsExact(With(
      kDropout, {"training.bf16=true", "resources.world_size=2",
                 "parallel.use_distributed_optimizer=true", "parallel.overlap_grad_reduce=true",
                 "parallel.overlap_param_gather=true", "parallel.ddp_bucket_size=2000"}));
}
TEST(ResumeTest, ContextParallel) {
  ExpectResumeIsExact(With(
      kDropout, {"training.bf16=true", "resources.world_size=2", "parallel.context_parallel_size=2",
                 "evaluation.eval_interval=2", "evaluation.eval_iters=1"}));
}
// Routers draw too.
TEST(ResumeTest, ExpertsThatAreExchangedBehindOtherWork) {
  ExpectResumeIsExact(
      With(kDropout,
           {"training.bf16=true", "resources.world_size=2", "model.num_experts=4",
            "model.moe_aux_loss_coeff=0.02", "model.moe_input_jitter_eps=0.1",
            "model.moe_grouped_gemm=true", "model.moe_token_dispatcher_type=alltoall",
            "model.moe_shared_expert_intermediate_size=8", "model.moe_shared_expert_overlap=true",
            "model.add_bias_linear=false", "parallel.expert_model_parallel_size=2",
            "parallel.use_distributed_optimizer=true", "parallel.overlap_grad_reduce=true",
            "parallel.overlap_param_gather=true", "parallel.ddp_bucket_size=2000"}));
}
// Stopped by a directive too, with every file of the checkpoint; fsdp_test.cc resumes each strategy
// in every other.
TEST(ResumeTest, ShardedParameters) {
  ExpectResumeIsExact(With(
      kDropout, {"training.bf16=true", "resources.world_size=2", "parallel.use_megatron_fsdp=true",
                 "parallel.data_parallel_sharding_strategy=optim_grads_params"}));
}
TEST(ResumeTest, ShardedAsTorchDoes) {
  ExpectResumeIsExact(With(
      kDropout, {"training.bf16=true", "resources.world_size=2", "parallel.use_torch_fsdp2=true",
                 "model.untie_embeddings_and_output_weights=true"}));
}
TEST(ResumeTest, CyclicDataWithEvaluations) {
  ExpectResumeIsExact({"data.dataloader_type=cyclic", "evaluation.eval_interval=2",
                       "evaluation.eval_iters=1", "schedule.lr_warmup_iters=2",
                       "schedule.lr_decay_style=cosine"});
}

TEST(ResumeTest, AnotherNumberOfRanksGoesOnWithinRounding) {
  TrainTestRoot root;
  const std::vector<std::string> base = {"training.fp64=true"};
  const auto unbroken = Train(root.Spec(base));
  for (const auto& [before, after] : {std::pair(1, 2), std::pair(4, 2), std::pair(2, 1)}) {
    const std::string name = absl::StrCat("from", before, "to", after);
    SCOPED_TRACE(name);
    const auto broken = With(base, SaveAndLoad(root, name));
    auto steps = Train(root.Spec(
        With(broken, {absl::StrCat("resources.world_size=", before), "training.exit_interval=3"})));
    for (const StepMessage& step :
         Train(root.Spec(With(broken, {absl::StrCat("resources.world_size=", after)})))) {
      steps.push_back(step);
    }
    ExpectSameCurve(steps, unbroken, 1e-10);
  }
}

class LoadTest : public testing::Test {
 protected:
  // A checkpoint of 3 iterations under root/old.
  void SetUp() override {
    Train(root_.Spec({absl::StrCat("checkpoint.save=", root_ / "old"),
                      "checkpoint.save_interval=1000", "training.exit_interval=3"}));
  }
  std::string Load() const { return absl::StrCat("checkpoint.load=", root_ / "old"); }
  absl::Status FailureOf(const std::vector<std::string>& settings) {
    const auto ranks = RunJob(root_.Spec(settings));
    EXPECT_THAT(ranks[0].host->All<StepMessage>(), SizeIs(0));
    return ranks[0].status;
  }
  TrainTestRoot root_;
};

TEST_F(LoadTest, FinetuneTakesTheWeightsAndBeginsAtZero) {
  const auto fresh = Train(root_.Spec());
  const auto tuned = Train(root_.Spec({Load(), "checkpoint.finetune=true"}));
  ASSERT_THAT(tuned, SizeIs(6));
  EXPECT_EQ(tuned[0].iteration, 1);
  EXPECT_EQ(tuned[0].consumed_samples, 8);
  EXPECT_EQ(tuned[0].learning_rate, fresh[0].learning_rate);
  EXPECT_LT(Losses(tuned)[0], Losses(fresh)[0] - 0.01);
}

TEST_F(LoadTest, PretrainedCheckpointIsUsedWhereLoadHasNothing) {
  const auto tuned = Train(root_.Spec({Load(), "checkpoint.finetune=true"}));
  const auto pretrained =
      Train(root_.Spec({absl::StrCat("checkpoint.pretrained_checkpoint=", root_ / "old"),
                        absl::StrCat("checkpoint.load=", root_ / "empty")}));
  ExpectSameCurve(pretrained, tuned, 0);
  // Once load has a checkpoint, it is the one.
  const auto resumed = Train(
      root_.Spec({absl::StrCat("checkpoint.pretrained_checkpoint=", root_ / "empty"), Load()}));
  EXPECT_EQ(resumed.at(0).iteration, 4);
  const absl::Status missing =
      FailureOf({absl::StrCat("checkpoint.pretrained_checkpoint=", root_ / "empty")});
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("pretrained_checkpoint"));
}

TEST_F(LoadTest, AnEmptyFolderStartsFromScratchUnlessThatIsForbidden) {
  const std::string empty = absl::StrCat("checkpoint.load=", root_ / "empty");
  EXPECT_EQ(Train(root_.Spec({empty})).at(0).iteration, 1);
  const absl::Status forbidden = FailureOf({empty, "checkpoint.exit_on_missing_checkpoint=true"});
  EXPECT_THAT(std::string(forbidden.message()), HasSubstr("exit_on_missing_checkpoint"));
}

TEST_F(LoadTest, AnotherPaddingOfTheVocabularyIsTold) {
  const auto events = [&](int divisible_by) {
    const auto ranks = RunJob(
        root_.Spec({Load(), absl::StrCat("model.make_vocab_size_divisible_by=", divisible_by)}));
    EXPECT_TRUE(ranks[0].status.ok()) << ranks[0].status;
    std::string text;
    for (const EventMessage& event : ranks[0].host->All<EventMessage>()) text += event.text + "\n";
    return text;
  };
  EXPECT_THAT(events(64), HasSubstr("of 257 tokens is padded to 320, in the checkpoint to 257"));
  EXPECT_THAT(events(1), Not(HasSubstr("padded")));
}

TEST_F(LoadTest, CkptStepThatIsNotThereIsAnError) {
  const absl::Status status = FailureOf({Load(), "checkpoint.ckpt_step=2"});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
}

TEST_F(LoadTest, AnotherModelIsRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"model.num_layers=3", "model.num_layers=3, but the checkpoint was saved with 2"},
      {"model.hidden_size=32", "model.hidden_size=32"},
      {"model.num_attention_heads=4", "model.num_attention_heads=4"},
      {"model.position_embedding_type=rope", "model.position_embedding_type=rope"},
      {"model.untie_embeddings_and_output_weights=true",
       "untie_embeddings_and_output_weights=true, but the checkpoint was saved with false"},
      // Found by the shape of a tensor.
      {"model.ffn_hidden_size=32", "mlp"},
      // Found by a tensor that is missing.
      {"model.qk_layernorm=true", "layernorm"},
  };
  for (const auto& [setting, text] : rows) {
    SCOPED_TRACE(setting);
    const absl::Status status = FailureOf({Load(), setting});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
}

TEST_F(LoadTest, TensorsWithoutAPlaceAreTold) {
  const auto notes = [&](const std::string& load, const Settings& more) {
    const auto ranks = RunJob(root_.Spec(
        Settings{load, "resources.world_size=2", "parallel.pipeline_model_parallel_size=2"} +
        more));
    EXPECT_TRUE(ranks[0].status.ok()) << ranks[0].status;
    std::string text;
    for (const EventMessage& event : ranks[0].host->All<EventMessage>()) text += event.text + "\n";
    return text;
  };
  EXPECT_THAT(notes(Load(), {}), Not(HasSubstr("left out")));
  Train(root_.Spec({absl::StrCat("checkpoint.save=", root_ / "qk"), "training.exit_interval=3",
                    TrainTestRoot::kNoInterval, "model.qk_layernorm=true"}));
  // Its optimizer states are no weights.
  EXPECT_THAT(notes(absl::StrCat("checkpoint.load=", root_ / "qk"), {}),
              HasSubstr("8 tensors of the checkpoint have no place in this model and are left out: "
                        "decoder.layers.0.self_attention.k_layernorm.bias, "));
}

TEST_F(LoadTest, AnOutputLayerIsNotLeftOutUnseen) {
  const std::string untied = root_ / "untied";
  Train(root_.Spec({absl::StrCat("checkpoint.save=", untied), "checkpoint.save_interval=1000",
                    "training.exit_interval=1", "model.untie_embeddings_and_output_weights=true"}));
  EXPECT_THAT(std::string(FailureOf({absl::StrCat("checkpoint.load=", untied)}).message()),
              HasSubstr("untie_embeddings_and_output_weights=false, but"));
}

TEST_F(LoadTest, AnotherOptimizerOrAMissingStateIsAnErrorNotAFreshStart) {
  const absl::Status sgd = FailureOf({Load(), "optimizer.optimizer=sgd"});
  EXPECT_EQ(sgd.code(), absl::StatusCode::kFailedPrecondition) << sgd;
  EXPECT_THAT(std::string(sgd.message()), HasSubstr("momentum_buffer"));

  const std::string save = absl::StrCat("checkpoint.save=", root_ / "bare");
  const std::string load = absl::StrCat("checkpoint.load=", root_ / "bare");
  Train(root_.Spec({save, "checkpoint.save_interval=1000", "training.exit_interval=3",
                    "checkpoint.no_save_optim=true", "checkpoint.no_save_rng=true"}));
  const absl::Status bare = FailureOf({load});
  EXPECT_THAT(std::string(bare.message()), HasSubstr("checkpoint.no_load_optim"));
  const absl::Status no_rng = FailureOf({load, "checkpoint.no_load_optim=true"});
  EXPECT_THAT(std::string(no_rng.message()), HasSubstr("checkpoint.no_load_rng"));
  const auto steps =
      Train(root_.Spec({load, "checkpoint.no_load_optim=true", "checkpoint.no_load_rng=true"}));
  ASSERT_THAT(steps, SizeIs(3));
  EXPECT_EQ(steps[0].iteration, 4);
}

TEST_F(LoadTest, DamageIsFoundAndNamed) {
  const std::string shard = Folder(root_, "old", 3) + "/shard_00000.safetensors";
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-5, std::ios::end);
  const char byte = static_cast<char>(file.get());
  file.seekp(-5, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  const absl::Status status = FailureOf({Load()});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("shard_00000"));
}

// Saves that fail.

std::vector<std::string> Saves(const ScriptedHost& host) {
  std::vector<std::string> out;
  for (const CheckpointMessage& message : host.All<CheckpointMessage>()) {
    EXPECT_EQ(message.ok, message.error.empty()) << message.error;
    out.push_back(absl::StrCat(message.iteration, message.ok ? " ok" : " failed"));
  }
  return out;
}

// A regular file in the folder's place: the way to make a save fail that holds for every user.
void Block(const std::string& folder) {
  if (fs::exists(folder)) fs::rename(folder, folder + ".aside");
  std::ofstream(folder) << "in the way";
}
void Unblock(const std::string& folder) {
  fs::remove(folder);
  if (fs::exists(folder + ".aside")) fs::rename(folder + ".aside", folder);
}

TEST(FailedSaveTest, TrainingGoesOnAndTheSaveIsTriedAgain) {
  TrainTestRoot root;
  const std::string folder = root / "ckpt";
  const std::vector<std::string> settings = {absl::StrCat("checkpoint.save=", folder),
                                             "checkpoint.save_interval=4",
                                             "training.train_iters=12", "resources.world_size=2"};
  const auto ranks = RunJob(root.Spec(settings), {.script = [&](int rank, ScriptedHost& host) {
                              if (rank != 0) return;
                              host.before_end_of[3] = [&] { Block(folder); };
                              host.before_end_of[7] = [&] { Unblock(folder); };
                            }});
  EXPECT_THAT(StepsOf(ranks), SizeIs(12));
  // At 4 it fails, again one step later; the next gap is 2.
  EXPECT_THAT(Saves(*ranks[0].host), ElementsAre("4 failed", "5 failed", "7 ok", "8 ok", "12 ok"));
  EXPECT_THAT(Saves(*ranks[1].host), ElementsAre());
  EXPECT_EQ(ranks[0].exit_code, 0);
  EXPECT_THAT(ranks[0].host->All<CheckpointMessage>()[0].error, HasSubstr(folder));
  // What it does not change: the numbers.
  ExpectSameCurve(StepsOf(ranks),
                  Train(root.Spec({"training.train_iters=12", "resources.world_size=2"})), 0);
}

TEST(FailedSaveTest, ALastSaveThatFailsIsTheExitCode) {
  TrainTestRoot root;
  const std::string folder = root / "ckpt";
  Block(folder);
  const std::vector<std::string> settings = {absl::StrCat("checkpoint.save=", folder),
                                             "checkpoint.save_interval=1000",
                                             "resources.world_size=2"};
  for (const char* way : {"training.train_iters=6", "training.exit_interval=2"}) {
    SCOPED_TRACE(way);
    const auto ranks = RunJob(root.Spec(With(settings, {way})));
    for (const RankRun& rank : ranks) {
      EXPECT_TRUE(rank.status.ok()) << rank.status;
      EXPECT_EQ(rank.exit_code, 1);
      EXPECT_THAT(rank.reason, AllOf(HasSubstr("could not be saved"), HasSubstr(folder)));
    }
    EXPECT_THAT(Saves(*ranks[0].host), SizeIs(3));
  }
}

}  // namespace
}  // namespace muster
