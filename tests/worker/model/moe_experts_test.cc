// The experts of one rank: one after the other and in one operation, against each other and against
// finite differences.

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "test_support.h"
#include "worker/model/experts.h"
#include "worker/model/grouped_experts.h"
#include "worker/model/grouped_gemm.h"
#include "worker/parallel/gemm.h"

namespace muster {
namespace {

constexpr int64_t kHidden = 5, kFfn = 6;

struct Case {
  const char* name;
  bool swiglu = false, biases = false, probs = true;
  std::vector<int64_t> rows;
};
const Case kCases[] = {
    {.name = "gelu", .rows = {3, 2, 4}},
    {.name = "swiglu", .swiglu = true, .rows = {3, 2, 4}},
    {.name = "biases", .biases = true, .rows = {3, 2, 4}},
    {.name = "swiglu_biases_no_weights",
     .swiglu = true,
     .biases = true,
     .probs = false,
     .rows = {3, 2, 4}},
    {.name = "some_without_rows", .biases = true, .rows = {0, 4, 0}},
    {.name = "no_rows", .swiglu = true, .biases = true, .rows = {0, 0}},
    {.name = "one_expert", .swiglu = true, .rows = {5}},
};

// Experts with inputs, the same numbers for the same case.
struct Given {
  std::vector<ExpertWeights> experts;
  at::Tensor x, probs;

  explicit Given(const Case& c) {
    uint64_t seed = 1;
    int64_t rows = 0;
    for (const int64_t count : c.rows) {
      rows += count;
      const int64_t wide = kFfn * (c.swiglu ? 2 : 1);
      ExpertWeights expert{.fc1 = RandomParameter({wide, kHidden}, seed++),
                           .fc2 = RandomParameter({kHidden, kFfn}, seed++)};
      if (c.biases) {
        expert.fc1_bias = RandomParameter({wide}, seed++);
        expert.fc2_bias = RandomParameter({kHidden}, seed++);
      }
      experts.push_back(expert);
    }
    x = RandomLeaf({rows, kHidden}, 91);
    if (c.probs) probs = RandomLeaf({rows}, 92);
  }
  std::vector<ParameterPtr> Parameters() const {
    std::vector<ParameterPtr> all;
    for (const ExpertWeights& e : experts) {
      all.insert(all.end(), {e.fc1, e.fc2});
      if (e.fc1_bias != nullptr) all.insert(all.end(), {e.fc1_bias, e.fc2_bias});
    }
    return all;
  }
  std::vector<at::Tensor> Leaves() const {
    std::vector<at::Tensor> leaves = {x};
    if (probs.defined()) leaves.push_back(probs);
    for (const ParameterPtr& p : Parameters()) leaves.push_back(p->data);
    return leaves;
  }
};

class CountingSink final : public GradSink {
 public:
  void GradReady(Parameter&) override { ++calls; }
  int calls = 0;
};

class MoeExpertsTest : public testing::TestWithParam<Case> {};

TEST_P(MoeExpertsTest, GroupedGradientsAreFiniteDifferences) {
  const Case& c = GetParam();
  Given s(c);
  EXPECT_LE(
      GradientError(s.Leaves(),
                    [&] { return GroupedExpertsOp(s.x, s.probs, c.rows, s.experts, c.swiglu); }),
      1e-8);
}

TEST_P(MoeExpertsTest, SequentialGradientsAreFiniteDifferences) {
  const Case& c = GetParam();
  Given s(c);
  EXPECT_LE(
      GradientError(s.Leaves(),
                    [&] { return SequentialExperts(s.x, s.probs, c.rows, s.experts, c.swiglu); }),
      1e-8);
}

// With main_grad, twice: the first contribution overwrites, the second adds.
TEST_P(MoeExpertsTest, GroupedAndSequentialAreTheSameAndEveryParameterGetsItsGradient) {
  const Case& c = GetParam();
  Given grouped(c), sequential(c);
  CountingSink grouped_sink, sequential_sink;
  const auto run = [&](Given& s, CountingSink& sink, auto op) {
    AttachMainGrads(s.Parameters(), at::kDouble);
    for (const ParameterPtr& p : s.Parameters()) p->sink = &sink;
    at::Tensor y;
    for (int pass = 0; pass < 2; ++pass) {
      y = op(s.x, s.probs, c.rows, s.experts, c.swiglu);
      (y * RandomLeaf(y.sizes(), 93).detach()).sum().backward();
    }
    return y;
  };
  const at::Tensor a = run(grouped, grouped_sink, GroupedExpertsOp);
  const at::Tensor b = run(sequential, sequential_sink, SequentialExperts);
  EXPECT_LE(MaxDifference(a, b), 1e-13);
  EXPECT_LE(MaxDifference(grouped.x.grad(), sequential.x.grad()), 1e-12);
  if (c.probs) {
    EXPECT_LE(MaxDifference(grouped.probs.grad(), sequential.probs.grad()), 1e-12);
  }
  const auto of_grouped = grouped.Parameters(), of_sequential = sequential.Parameters();
  for (size_t i = 0; i < of_grouped.size(); ++i) {
    EXPECT_LE(MaxDifference(of_grouped[i]->main_grad, of_sequential[i]->main_grad), 1e-12);
  }
  EXPECT_EQ(grouped_sink.calls, 2 * static_cast<int>(of_grouped.size()));
  EXPECT_EQ(sequential_sink.calls, 2 * static_cast<int>(of_grouped.size()));
}

INSTANTIATE_TEST_SUITE_P(All, MoeExpertsTest, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

// bf16 rows with fp32 weights, as a router in fp32 gives them.
TEST(MoeExpertsTest, WeightsOfAWiderTypeKeepTheRowsType) {
  const Case c{.name = "bf16", .swiglu = true, .rows = {3, 4}};
  Given s(c);
  for (const ParameterPtr& p : s.Parameters())
    p->data = p->data.detach().to(at::kBFloat16).requires_grad_();
  const at::Tensor x = s.x.detach().to(at::kBFloat16).requires_grad_();
  const at::Tensor probs = s.probs.detach().to(at::kFloat).requires_grad_();
  const at::Tensor grouped = GroupedExpertsOp(x, probs, c.rows, s.experts, true);
  const at::Tensor sequential = SequentialExperts(x, probs, c.rows, s.experts, true);
  EXPECT_EQ(grouped.scalar_type(), at::kBFloat16);
  EXPECT_EQ(sequential.scalar_type(), at::kBFloat16);
  EXPECT_LE(MaxDifference(grouped.to(at::kFloat), sequential.to(at::kFloat)), 2e-2);
  grouped.sum().backward();
  EXPECT_EQ(probs.grad().scalar_type(), at::kFloat);
}

// Few rows a group: each thread takes groups of its own.
TEST(GroupedGemmTest, ThreadsGiveTheSameAsTurns) {
  const GroupRows rows = {3, 0, 5, 1, 2};
  std::vector<ParameterPtr> one, many;
  std::vector<at::Tensor> matrices;
  for (uint64_t i = 0; i < rows.size(); ++i) {
    one.push_back(RandomParameter({4, 7}, 10 + i));
    many.push_back(RandomParameter({4, 7}, 10 + i));
    matrices.push_back(one.back()->data.detach());
  }
  const at::Tensor x = RandomLeaf({11, 7}, 1), a = RandomLeaf({11, 4}, 2).detach();
  AttachMainGrads(one, at::kDouble);
  AttachMainGrads(many, at::kDouble);

  at::set_num_threads(1);
  const at::Tensor y = GroupedGemmNT(x, rows, matrices), dx = GroupedGemmNN(a, rows, matrices);
  GroupedWeightGrads(a, x.detach(), rows, one);
  at::set_num_threads(3);
  EXPECT_LE(MaxDifference(GroupedGemmNT(x, rows, matrices), y), 1e-14);
  EXPECT_LE(MaxDifference(GroupedGemmNN(a, rows, matrices), dx), 1e-14);
  GroupedWeightGrads(a, x.detach(), rows, many);
  at::set_num_threads(1);
  int64_t begin = 0;
  for (size_t g = 0; g < rows.size(); begin += rows[g++]) {
    EXPECT_LE(MaxDifference(y.narrow(0, begin, rows[g]),
                            GemmNT(x.detach().narrow(0, begin, rows[g]), matrices[g])),
              1e-14);
    EXPECT_LE(MaxDifference(many[g]->main_grad, one[g]->main_grad), 1e-14);
  }
}

}  // namespace
}  // namespace muster
