// Activation recomputation: the same bits of loss, gradients and random draws as without it, less
// memory between the passes, and errors that arrive as what they are.

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "test_support.h"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/model/recompute.h"
#include "worker/parallel/ddp.h"

namespace muster {
namespace {

struct Mode {
  const char* name;
  RecomputeMode recompute;
  int64_t num_layers;
};
const Mode kModes[] = {{"uniform 1", RecomputeMode::kUniform, 1},
                       {"uniform 2", RecomputeMode::kUniform, 2},
                       {"uniform 3", RecomputeMode::kUniform, 3},  // a last group of 1
                       {"block 2", RecomputeMode::kBlock, 2},
                       {"block 9", RecomputeMode::kBlock, 9},  // more than there are
                       {"selective", RecomputeMode::kSelective, 1}};

TransformerConfig Gpt2Like() {
  TransformerConfig config = TinyConfig();
  config.num_layers = 4;
  config.attention_dropout = config.hidden_dropout = 0.2;
  return config;
}

TransformerConfig LlamaLike() {
  TransformerConfig config = TinyConfig();
  config.num_layers = 4;
  config.num_query_groups = 2;
  config.position_embedding = PositionEmbedding::kRope;
  config.normalization = Normalization::kRmsNorm;
  config.swiglu = true;
  config.add_bias_linear = false;
  config.qk_layernorm = true;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

TransformerConfig With(TransformerConfig config, const Mode& mode) {
  config.recompute = mode.recompute;
  config.recompute_num_layers = mode.num_layers;
  return config;
}

// Losses and gradients of two microbatches; the second one's dropout shows where the generators
// were after the first one's backward pass.
std::vector<at::Tensor> TwoMicrobatches(const TransformerConfig& config, at::ScalarType dtype,
                                        bool main_grads, bool masked) {
  auto model = MakeModel(config, dtype);
  if (main_grads) AttachMainGrads(model->parameters(), dtype == at::kDouble ? dtype : at::kFloat);
  std::vector<at::Tensor> results;
  for (const uint64_t seed : {5, 6}) {
    Batch batch = RandomBatch(config, 2, 8, seed);
    if (masked) batch.attention_mask = at::ones({2, 1, 8, 8}, at::kBool).triu(1);
    const at::Tensor loss = model->Forward(batch, {}).mean();
    loss.backward();
    results.push_back(loss.detach());
  }
  for (const ParameterPtr& p : model->parameters()) {
    results.push_back(main_grads ? p->main_grad : p->data.grad());
  }
  return results;
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.isfinite().all().item<bool>() && at::equal(a, b);
}

void ExpectSameBits(const TransformerConfig& config, at::ScalarType dtype, bool masked = false) {
  for (const bool main_grads : {true, false}) {
    const auto expected = TwoMicrobatches(config, dtype, main_grads, masked);
    for (const Mode& mode : kModes) {
      SCOPED_TRACE(std::string(mode.name) + (main_grads ? ", main_grad" : ", autograd"));
      const auto got = TwoMicrobatches(With(config, mode), dtype, main_grads, masked);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(SameBits(got[i], expected[i])) << i;
    }
  }
}

TEST(RecomputeTest, Gpt2WithDropoutKeepsEveryBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    SCOPED_TRACE(at::toString(dtype));
    ExpectSameBits(Gpt2Like(), dtype);
  }
}

TEST(RecomputeTest, HiddenDropoutAloneKeepsEveryBit) {
  TransformerConfig config = Gpt2Like();
  config.attention_dropout = 0;  // the fused attention
  ExpectSameBits(config, at::kFloat);
  ExpectSameBits(config, at::kBFloat16);
}

TEST(RecomputeTest, LlamaKeepsEveryBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    SCOPED_TRACE(at::toString(dtype));
    ExpectSameBits(LlamaLike(), dtype);
  }
}

TEST(RecomputeTest, ExplicitMaskKeepsEveryBit) {
  ExpectSameBits(LlamaLike(), at::kDouble, /*masked=*/true);
  ExpectSameBits(Gpt2Like(), at::kFloat, /*masked=*/true);
}

TEST(RecomputeTest, EvaluationRunsOnceAndGivesTheSameLoss) {
  auto plain = MakeModel(Gpt2Like(), at::kFloat);
  auto again = MakeModel(With(Gpt2Like(), kModes[0]), at::kFloat);
  const Batch batch = RandomBatch(Gpt2Like(), 2, 8, 5);
  for (GptModel* model : {plain.get(), again.get()}) model->SetTraining(false);
  at::NoGradGuard no_grad;
  EXPECT_TRUE(SameBits(plain->Forward(batch, {}), again->Forward(batch, {})));
}

// A stage that does not begin the model: the gradient that is sent back is the same too.
TEST(RecomputeTest, LaterStageSendsTheSameGradientBack) {
  std::vector<at::Tensor> sent;
  for (const bool recompute : {false, true}) {
    const TransformerConfig config = recompute ? With(Gpt2Like(), kModes[1]) : Gpt2Like();
    RngTracker rng = MakeRng();
    GptModel stage(config,
                   {.pre_process = false,
                    .post_process = false,
                    .layer_offset = 2,
                    .num_layers = 2,
                    .seq_major = true},
                   GptModel::Groups{}, rng, at::kCPU, at::kFloat);
    const at::Tensor input = RandomLeaf({8, 2, config.hidden_size}, 3, at::kFloat);
    const at::Tensor output = stage.Forward(Batch{}, input);
    output.backward(RandomLeaf(output.sizes(), 4, at::kFloat).detach());
    sent.push_back(input.grad());
  }
  EXPECT_TRUE(SameBits(sent[0], sent[1]));
}

class CountingSink : public GradSink {
 public:
  void GradReady(Parameter& parameter) override { ++counts[parameter.name]; }
  std::map<std::string, int> counts;
};

TEST(RecomputeTest, EachGradientArrivesAsOftenAsWithout) {
  std::map<std::string, int> counts[2];
  for (const bool recompute : {false, true}) {
    const TransformerConfig config = recompute ? With(Gpt2Like(), kModes[1]) : Gpt2Like();
    auto model = MakeModel(config, at::kFloat);
    AttachMainGrads(model->parameters(), at::kFloat);
    CountingSink sink;
    for (const ParameterPtr& p : model->parameters()) p->sink = &sink;
    model->Forward(RandomBatch(config, 2, 8, 5), {}).mean().backward();
    counts[recompute] = sink.counts;
  }
  EXPECT_EQ(counts[0], counts[1]);
  EXPECT_EQ(counts[1].at("decoder.layers.3.mlp.linear_fc1.weight"), 1);
  EXPECT_EQ(counts[1].at("embedding.word_embeddings.weight"), 2);  // tied
}

TEST(RecomputeTest, OverlappedReductionGivesTheSameBits) {
  std::vector<at::Tensor> grads[2];
  for (const bool recompute : {false, true}) {
    const TransformerConfig config = recompute ? With(Gpt2Like(), kModes[0]) : Gpt2Like();
    RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
      auto model = MakeModel(config, at::kDouble);
      Communicator* comm = world.get();
      auto self = MakeThreadWorld(1)[0];
      const DdpGroups groups{.dp_cp = comm,
                             .expert_dp = comm,
                             .intra_dp_cp = comm,
                             .intra_expert_dp = comm,
                             .inter = self.get()};
      auto ddp = DistributedDataParallel::Create(
          {model->parameters()}, groups, {.overlap_grad_reduce = true, .bucket_size = 3000});
      if (!ddp.ok()) return ddp.status();
      (*ddp)->ZeroGradBuffer();
      for (const bool last : {false, true}) {
        const Batch batch = RandomBatch(config, 2, 8, 10 + 2 * comm->rank() + last);
        std::optional<DistributedDataParallel::NoSync> no_sync;
        if (!last) no_sync.emplace(**ddp);
        model->Forward(batch, {}).mean().backward();
      }
      if (absl::Status status = (*ddp)->FinishGradSync(0); !status.ok()) return status;
      if (comm->rank() == 0) {
        for (const ParameterPtr& p : model->parameters()) {
          grads[recompute].push_back(p->main_grad.clone());
        }
      }
      return absl::OkStatus();
    });
  }
  ASSERT_EQ(grads[0].size(), grads[1].size());
  for (size_t i = 0; i < grads[0].size(); ++i) EXPECT_TRUE(SameBits(grads[0][i], grads[1][i])) << i;
}

TEST(RecomputeTest, SecondRunDrawsAgainAndLeavesTheGeneratorsAlone) {
  RngTracker rng = MakeRng();
  const at::Tensor x = RandomLeaf({64}, 1);
  std::vector<at::Tensor> masks;
  const at::Tensor y = Recompute(rng.Generators(), {x}, [&](const TensorList& in) {
    masks.push_back(at::empty_like(in[0].detach()).bernoulli_(0.5, rng.ModelParallel()));
    return TensorList{in[0] * masks.back()};
  })[0];
  at::empty({10}).bernoulli_(0.5, rng.Default());  // the model goes on drawing
  at::empty({10}).bernoulli_(0.5, rng.ModelParallel());
  const auto current = rng.SaveState();
  y.sum().backward();
  ASSERT_EQ(masks.size(), 2u);
  EXPECT_TRUE(at::equal(masks[0], masks[1]));
  EXPECT_TRUE(at::equal(x.grad(), masks[0]));
  EXPECT_EQ(rng.SaveState(), current);
}

TEST(RecomputeTest, FailureOfTheSecondRunArrivesAsWhatItIs) {
  RngTracker rng = MakeRng();
  const at::Tensor x = RandomLeaf({4}, 1);
  int runs = 0;
  const at::Tensor y = Recompute(rng.Generators(), {x}, [&](const TensorList& in) {
    at::empty({10}).bernoulli_(0.5, rng.Default());
    if (++runs == 2) throw CollectiveError(absl::UnavailableError("rank 3 is gone"));
    return TensorList{in[0] * 2};
  })[0];
  at::empty({10}).bernoulli_(0.5, rng.Default());
  const auto current = rng.SaveState();
  try {
    y.sum().backward();
    FAIL() << "the error was lost";
  } catch (const CollectiveError& error) {
    EXPECT_EQ(error.status, absl::UnavailableError("rank 3 is gone"));
  }
  EXPECT_EQ(rng.SaveState(), current);
}

TEST(RecomputeTest, FailureOfTheInnerBackwardArrivesAsWhatItIs) {
  RngTracker rng = MakeRng();
  const at::Tensor x = RandomLeaf({4}, 1);
  const at::Tensor y = Recompute(rng.Generators(), {x}, [&](const TensorList& in) {
    at::Tensor doubled;
    {
      OpForward forward;
      doubled = in[0] * 2;
    }
    return TensorList{
        RecordOp(doubled, {in[0]}, [](const TensorList&, const NeedsGrad&) -> TensorList {
          throw CollectiveError(absl::UnavailableError("rank 3 is gone"));
        })};
  })[0];
  try {
    y.sum().backward();
    FAIL() << "the error was lost";
  } catch (const CollectiveError& error) {
    EXPECT_EQ(error.status, absl::UnavailableError("rank 3 is gone"));
  }
}

TEST(RecomputeTest, ParametersGetGradientsWhereNoInputNeedsOne) {
  RngTracker rng = MakeRng();
  const at::Tensor w = RandomLeaf({4}, 1);
  const at::Tensor x = RandomLeaf({4}, 2).detach();
  Recompute(rng.Generators(), {x}, [&](const TensorList& in) { return TensorList{in[0] * w}; })[0]
      .sum()
      .backward();
  EXPECT_TRUE(at::equal(w.grad(), x));
}

// Bytes of CPU tensors that are alive, counted from its construction on.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this); }
  ~CountingAllocator() override { c10::SetCPUAllocator(before_); }
  c10::DataPtr allocate(size_t bytes) override {
    char* block = static_cast<char*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64));
    *reinterpret_cast<size_t*>(block) = bytes;
    live += static_cast<int64_t>(bytes);
    return {block + 64, block + 64, &Release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  static int64_t live;

 private:
  static void Release(void* data) {
    char* block = static_cast<char*>(data) - 64;
    live -= static_cast<int64_t>(*reinterpret_cast<size_t*>(block));
    std::free(block);
  }
  c10::Allocator* const before_;
};
int64_t CountingAllocator::live = 0;

constexpr int64_t kMemoryBatch = 4, kMemorySeq = 128;

// What `num_layers` layers keep between forward and backward pass, bytes.
int64_t KeptBytes(TransformerConfig config, int64_t num_layers) {
  config.num_layers = num_layers;
  config.max_position_embeddings = kMemorySeq;
  auto model = MakeModel(config, at::kFloat);
  const Batch batch = RandomBatch(config, kMemoryBatch, kMemorySeq, 5);
  const int64_t before = CountingAllocator::live;
  const at::Tensor loss = model->Forward(batch, {}).mean();
  return CountingAllocator::live - before;
}

int64_t KeptBytesALayer(const TransformerConfig& config) {
  return (KeptBytes(config, 6) - KeptBytes(config, 2)) / 4;
}

TEST(RecomputeTest, OnlyCheckpointsAreKeptBetweenThePasses) {
  CountingAllocator allocator;
  TransformerConfig config = Gpt2Like();
  config.hidden_size = 64;
  config.kv_channels = 16;
  const int64_t rows = kMemoryBatch * kMemorySeq;
  const int64_t input = rows * config.hidden_size * 4;  // fp32
  const int64_t rng_states = 32 << 10;                  // of 4 regions, at most
  const int64_t scores = kMemoryBatch * config.num_attention_heads * kMemorySeq * kMemorySeq * 4;
  const int64_t all = KeptBytesALayer(config);
  EXPECT_GT(all, 2 * scores + 8 * input);
  const int64_t uniform1 = KeptBytesALayer(With(config, kModes[0]));
  EXPECT_GE(uniform1, input);
  EXPECT_LE(uniform1, input + rng_states);
  const int64_t uniform2 = KeptBytesALayer(With(config, kModes[1]));
  EXPECT_GE(uniform2, input / 2);
  EXPECT_LE(uniform2, (input + rng_states) / 2);
  // block 2 of 2 and of 6 layers: four more layers that keep all.
  EXPECT_EQ(KeptBytesALayer(With(config, kModes[3])), all);
  EXPECT_LE(KeptBytes(With(config, kModes[3]), 6),
            KeptBytes(config, 6) - 2 * (all - uniform1) + 2 * rng_states);
  const int64_t selective = KeptBytesALayer(With(config, kModes[5]));
  EXPECT_LE(selective, all - 2 * scores);
  EXPECT_GT(selective, 8 * input);
}

}  // namespace
}  // namespace muster
