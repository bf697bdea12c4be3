// Whole jobs on one GPU beside the same jobs on a CPU, from a checkpoint that the CPU's run wrote
// (the devices draw other initial weights), and the memory they take beside the plan's. Layouts of
// two ranks run as two threads that share the GPU.
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/schedule/from_spec.h"
#include "common/schedule/plan.h"
#include "common/spec/spec_json.h"
#include "tests/worker/train/train_test_util.h"
#include "worker/comm/self_communicator.h"
#include "worker/cuda/device_memory.h"
#include "worker/cuda/row_ops.h"

namespace muster {
namespace {

using testing::SizeIs;

// Takes a layout of several ranks back.
const Settings kOneRank = {"parallel.context_parallel_size=1",
                           "parallel.cp_comm_type=p2p",
                           "parallel.expert_model_parallel_size=1",
                           "parallel.use_megatron_fsdp=false",
                           "parallel.data_parallel_sharding_strategy=no_shard",
                           "parallel.use_torch_fsdp2=false"};

class TrainGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "no GPU";
    at::globalContext().setAllowTF32CuBLAS(false);
    UseCudaRowOps();
    CountCudaMemory();
  }

  static RunOptions OnGpu() {
    return {.device = "cuda:0", .wrap = [](int, std::shared_ptr<Communicator>) {
              return MakeSelfCommunicator("world", 0);
            }};
  }

  // Ten more iterations on each device, from the checkpoint of two on the CPU.
  struct Runs {
    std::vector<StepMessage> cpu, gpu;
  };
  Runs FromTheSameCheckpoint(const Settings& settings) {
    const Settings all = settings + Settings{TrainTestRoot::kNoInterval,
                                             "checkpoint.no_load_rng=true",  // no CPU has a GPU's
                                             "training.train_iters=12"};
    const std::string start = absl::StrCat("checkpoint.save=", root_ / "start");
    EXPECT_THAT(Train(root_.Spec(all + Settings{start, "training.exit_interval=2"})), SizeIs(2));
    const Settings more = all + Settings{absl::StrCat("checkpoint.load=", root_ / "start")};
    Runs runs{.cpu = Train(root_.Spec(more)), .gpu = Train(root_.Spec(more), OnGpu())};
    EXPECT_THAT(runs.gpu, SizeIs(10));
    return runs;
  }

  // Four iterations of two ranks on the GPU beside one on the CPU, from the same weights.
  // `settings`: with the layout, of which one rank has nothing.
  void ExpectTwoRanksLikeOne(const Settings& settings, double tolerance) {
    const Settings all = settings + Settings{TrainTestRoot::kNoInterval, "training.train_iters=4"};
    const Settings one = all + kOneRank;
    const std::string folder = root_ / absl::StrCat("weights", ++num_weights_);
    Train(root_.Spec(
        one + Settings{absl::StrCat("checkpoint.save=", folder), "training.exit_interval=1"}));
    const Settings start = {absl::StrCat("checkpoint.pretrained_checkpoint=", folder)};
    const auto cpu = Train(root_.Spec(one + start));
    ASSERT_THAT(cpu, SizeIs(4));
    const auto gpu =
        Train(root_.Spec(all + start + Settings{"resources.world_size=2"}), {.device = "cuda:0"});
    ExpectSameCurve(gpu, cpu, tolerance);
  }

  // The peak of a job on one GPU, within a tenth of the plan's.
  void ExpectPlannedMemory(const Settings& settings) {
    const Settings model = {
        "model.num_layers=12",          "model.hidden_size=768",  "model.num_attention_heads=12",
        "model.seq_length=512",         "model.vocab_size=8192",  "training.micro_batch_size=4",
        "training.global_batch_size=8", "training.train_iters=3", "data.split=1,0,0"};
    const std::string text = root_.Spec(model + settings);
    const JobSpec spec = ParseJobSpec(text).spec;
    const auto plan = MakePlan(spec, Resolve(spec, 257));
    ASSERT_TRUE(plan.ok()) << plan.status();
    c10::cuda::CUDACachingAllocator::resetPeakStats(0);
    const std::vector<RankRun> ranks = RunJob(text, OnGpu());
    const std::vector<StepMessage> steps = StepsOf(ranks);
    ASSERT_THAT(steps, SizeIs(3));
    const auto planned = static_cast<double>(plan->stages[0].total_bytes());
    const auto peak = static_cast<double>(ranks[0].peak_memory_bytes);
    EXPECT_NEAR(peak / planned, 1.0, 0.1) << peak / 1e6 << " MB, plan " << planned / 1e6 << " MB";
    EXPECT_EQ(steps.back().memory_bytes, ranks[0].peak_memory_bytes);
  }

  TrainTestRoot root_;
  int num_weights_ = 0;
};

const Settings kLlama = {"model.position_embedding_type=rope",
                         "model.normalization=RMSNorm",
                         "model.swiglu=true",
                         "model.ffn_hidden_size=64",
                         "model.add_bias_linear=false",
                         "model.num_query_groups=1",
                         "model.untie_embeddings_and_output_weights=true"};
constexpr char kFp64[] = "training.fp64=true";

TEST_F(TrainGpuTest, TenStepsInFp64FromACpuCheckpoint) {
  for (const Settings& settings :
       {Settings{kFp64}, kLlama + Settings{kFp64},
        Settings{kFp64, "parallel.use_distributed_optimizer=true"},
        Settings{kFp64, "training.recompute_granularity=full", "training.recompute_method=uniform",
                 "training.recompute_num_layers=1"},
        Settings{kFp64, "optimizer.optimizer=sgd"}, Settings{kFp64, "optimizer.optimizer=muon"}}) {
    SCOPED_TRACE(settings.back());
    const Runs runs = FromTheSameCheckpoint(settings);
    ExpectSameCurve(runs.gpu, runs.cpu, 1e-9);
  }
}

// Uneven routing: in a microbatch of 32 tokens some expert may get no rows.
const Settings kExperts = {kFp64, "model.num_experts=4", "model.moe_ffn_hidden_size=32",
                           "model.moe_aux_loss_coeff=0.02", "model.moe_z_loss_coeff=0.001"};
const Settings kNoBias = {"model.add_bias_linear=false"};
const Settings kGrouped = {"model.moe_grouped_gemm=true",
                           "model.moe_token_dispatcher_type=alltoall"};
const Settings kSigmoid = {"model.moe_router_score_function=sigmoid",
                           "model.moe_router_enable_expert_bias=true",
                           "model.moe_router_bias_update_rate=0.05"};

TEST_F(TrainGpuTest, TenStepsOfExpertsInFp64FromACpuCheckpoint) {
  for (const Settings& settings :
       {kExperts,
        kExperts + kSigmoid + kGrouped + kNoBias +
            Settings{"model.swiglu=true", "model.ffn_hidden_size=64"},
        kExperts + kNoBias +
            Settings{"model.moe_shared_expert_intermediate_size=32",
                     "model.moe_shared_expert_gate=true", "model.moe_expert_capacity_factor=1.0"},
        kExperts + Settings{"model.moe_router_load_balancing_type=global_aux_loss",
                            "training.recompute_granularity=full",
                            "training.recompute_method=uniform",
                            "training.recompute_num_layers=1"}}) {
    SCOPED_TRACE(testing::PrintToString(settings));
    const Runs runs = FromTheSameCheckpoint(settings);
    ExpectSameCurve(runs.gpu, runs.cpu, 1e-9);
  }
}

// Two ranks, each a thread, on one GPU: the memory that units borrow, rows and keys that travel,
// and the order of all that on the GPU's stream. The numbers are those of one CPU.
TEST_F(TrainGpuTest, LayoutsOfTwoRanksFromACpuCheckpoint) {
  const Settings context = {kFp64, "model.num_attention_heads=2",
                            "parallel.context_parallel_size=2"};
  const Settings expert2 = kExperts + kNoBias + Settings{"parallel.expert_model_parallel_size=2"};
  const Settings fsdp = {kFp64, "parallel.use_megatron_fsdp=true",
                         "parallel.data_parallel_sharding_strategy=optim_grads_params"};
  const Settings fsdp2 = {kFp64, "parallel.use_torch_fsdp2=true",
                          "model.untie_embeddings_and_output_weights=true"};
  for (const Settings& settings :
       {context, context + Settings{"parallel.cp_comm_type=all_gather"},
        context + Settings{"parallel.cp_comm_type=a2a", "model.position_embedding_type=rope"},
        expert2, expert2 + kSigmoid + kGrouped, fsdp,
        fsdp + Settings{"parallel.data_parallel_sharding_strategy=optim_grads"}, fsdp2,
        fsdp + expert2, fsdp2 + kExperts + kNoBias}) {
    SCOPED_TRACE(testing::PrintToString(settings));
    ExpectTwoRanksLikeOne(settings, 1e-9);
  }
}

// The fused kernels on pieces: four chunks of 32 tokens.
TEST_F(TrainGpuTest, ContextParallelBf16FollowsTheCpu) {
  for (const char* type : {"p2p", "all_gather", "a2a"}) {
    SCOPED_TRACE(type);
    ExpectTwoRanksLikeOne({"training.bf16=true", "model.seq_length=128", "model.hidden_size=64",
                           "model.num_attention_heads=2", "parallel.context_parallel_size=2",
                           absl::StrCat("parallel.cp_comm_type=", type)},
                          5e-2);
  }
}

// The largest number of a backward pass is a gradient of the logits, scale (1 - p) / 128 tokens.
// The first scales make it overflow; 3 times a power of two keeps it well away from fp16's limit,
// so that the devices' rounding does not decide.
TEST_F(TrainGpuTest, OverflowInFp16GivesTheCpusTraceOfScales) {
  const Runs runs = FromTheSameCheckpoint({"training.fp16=true", "training.loss_scale_window=100",
                                           "training.initial_loss_scale=50331648"});
  EXPECT_EQ(Scales(runs.gpu), Scales(runs.cpu));
  EXPECT_EQ(Skipped(runs.gpu), Skipped(runs.cpu));
  EXPECT_TRUE(runs.cpu.front().skipped);
  EXPECT_FALSE(runs.cpu.back().skipped);
}

TEST_F(TrainGpuTest, Fp16AndBf16FollowTheCpu) {
  for (const Settings& settings :
       {Settings{"training.fp16=true", "training.initial_loss_scale=1024"},
        Settings{"training.bf16=true"}}) {
    SCOPED_TRACE(settings[0]);
    const Runs runs = FromTheSameCheckpoint(settings);
    EXPECT_EQ(Skipped(runs.gpu), std::vector<bool>(10, false));
    // bf16 keeps 8 bits of weights of 0.02, which ten steps of Adam at lr 0.01 spread.
    ExpectSameCurve(runs.gpu, runs.cpu, settings.size() == 1 ? 5e-2 : 1e-2);
  }
}

// The plan counts tensors. cuBLAS and cuDNN keep work spaces beside them (32 MiB and more for each
// thread that multiplies), for which the tenth has room on a model of this size.
TEST_F(TrainGpuTest, PeakMemoryIsThePlans) {
  for (const char* precision : {"training.bf16=true", "training.fp16=true"}) {
    SCOPED_TRACE(precision);
    ExpectPlannedMemory({precision, "training.initial_loss_scale=1024"});
  }
}

// Filled up to the capacity, so that the plan knows every expert's rows.
TEST_F(TrainGpuTest, PeakMemoryOfExpertsIsThePlans) {
  const Settings experts = {"training.bf16=true",
                            "model.num_layers=6",
                            "model.add_bias_linear=false",
                            "model.num_experts=4",
                            "model.moe_ffn_hidden_size=1536",
                            "model.moe_expert_capacity_factor=1.25",
                            "model.moe_pad_expert_input_to_capacity=true",
                            "model.moe_token_dispatcher_type=alltoall"};
  for (const char* grouped : {"model.moe_grouped_gemm=false", "model.moe_grouped_gemm=true"}) {
    SCOPED_TRACE(grouped);
    ExpectPlannedMemory(experts + Settings{grouped});
  }
}

}  // namespace
}  // namespace muster
