// Permutation and dispatchers against the numbers of Megatron-core
// (tests/golden/make_dispatcher_goldens.py).

#include <fstream>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "dispatcher_support.h"
#include "nlohmann/json.hpp"
#include "tests/worker/parallel/thread_ranks.h"
#include "worker/moe/permute.h"

namespace muster {
namespace {

const nlohmann::json& Golden() {
  static const nlohmann::json document = nlohmann::json::parse(
      std::ifstream(std::string(MUSTER_SOURCE_DIR) + "/tests/golden/moe/dispatchers.json"));
  return document;
}

// Lists of numbers, of equal length where they are lists of lists (rows of `columns`).
at::Tensor ToTensor(const nlohmann::json& value, int64_t columns = 0) {
  std::vector<double> numbers;
  for (const auto& row : value) {
    if (columns == 0) numbers.push_back(row);
    for (size_t i = 0; columns > 0 && i < row.size(); ++i) numbers.push_back(row[i]);
  }
  const at::Tensor flat = at::tensor(numbers, at::kDouble);
  return columns == 0 ? flat : flat.view({-1, columns});
}

TEST(DispatcherGoldenTest, PermuteAndUnpermute) {
  const nlohmann::json& g = Golden()["functions"];
  const int64_t hidden = Golden()["sizes"]["hidden"], experts = Golden()["sizes"]["experts"];
  const RowOrderPtr order = OrderRows(ToTensor(g["map"], experts).to(at::kBool), {0, experts});
  EXPECT_TRUE(at::equal(order->token, ToTensor(g["token"]).to(at::kLong)));
  const TensorList rows = PermuteOp(ToTensor(g["x"], hidden), ToTensor(g["probs"], experts), order);
  EXPECT_TRUE(at::equal(rows[0], ToTensor(g["rows"], hidden)));
  EXPECT_TRUE(at::equal(rows[1], ToTensor(g["weights"])));
  EXPECT_LE(MaxDifference(UnpermuteOp(rows[0] * rows[1].unsqueeze(1), order),
                          ToTensor(g["restored"], hidden)),
            1e-15);
}

TEST(DispatcherGoldenTest, SortedChunks) {
  const nlohmann::json& g = Golden()["functions"];
  const std::vector<int64_t> rows = g["chunk_rows"], order = g["chunk_order"];
  std::vector<int64_t> inverse(order.size());
  int64_t total = 0;
  for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = i, total += rows[i];
  const TensorList sorted = SortChunksOp({at::arange(total, at::kDouble)}, rows, order, inverse);
  EXPECT_TRUE(at::equal(sorted[0], ToTensor(g["ordered"])));
}

class DispatcherGoldenCaseTest : public testing::TestWithParam<const char*> {};

TEST_P(DispatcherGoldenCaseTest, RowsOutputsAndGradients) {
  const nlohmann::json& g = Golden()["cases"][GetParam()];
  const nlohmann::json& sizes = Golden()["sizes"];
  LayerCase layer{.ep = g["ep"],
                  .etp = g["etp"],
                  .dispatcher = g["dispatcher"] == "alltoall" ? TokenDispatcherType::kAllToAll
                                                              : TokenDispatcherType::kAllGather,
                  .routing = g["padded"]    ? Routing::kPadded
                             : g["dropped"] ? Routing::kDropped
                                            : Routing::kTopk,
                  .experts = sizes["experts"],
                  .topk = sizes["topk"],
                  .tokens = sizes["tokens"],
                  .hidden = sizes["hidden"]};
  RunRanks(2, [&](CommunicatorPtr world) -> absl::Status {
    const nlohmann::json& rank = g["ranks"][world->rank()];
    ASSIGN_OR_RETURN(const RankGroups groups, MakeGroups(layer, world));
    const at::Tensor x = ToTensor(rank["x"], layer.hidden).set_requires_grad(true);
    const at::Tensor probs = ToTensor(rank["probs"], layer.experts).set_requires_grad(true);
    const at::Tensor map = ToTensor(rank["map"], layer.experts).to(at::kBool);
    const auto dispatcher = MakeTokenDispatcher(ConfigOf(layer), groups.groups);
    const Dispatched dispatched = dispatcher->Dispatch(x, {probs, map});
    const std::vector<int64_t> rows_per_expert = rank["rows_per_expert"];
    EXPECT_EQ(dispatched.rows_per_expert, rows_per_expert);
    EXPECT_TRUE(at::equal(dispatched.tokens, ToTensor(rank["tokens"], layer.hidden)));
    EXPECT_TRUE(at::equal(dispatched.probs, ToTensor(rank["weights"])));
    std::vector<double> factors;
    for (size_t e = 0; e < rows_per_expert.size(); ++e) {
      factors.insert(factors.end(), rows_per_expert[e],
                     1.0 + e + groups.groups.ep_rank * layer.experts / layer.ep);
    }
    const at::Tensor outputs = dispatched.tokens *
                               (dispatched.probs * at::tensor(factors, at::kDouble)).unsqueeze(1) /
                               layer.etp;
    const at::Tensor combined = dispatcher->Combine(dispatched, outputs);
    EXPECT_LE(MaxDifference(combined, ToTensor(rank["combined"], layer.hidden)), 1e-14);
    (combined * ToTensor(rank["loss_weights"], layer.hidden)).sum().backward();
    EXPECT_LE(MaxDifference(x.grad(), ToTensor(rank["dx"], layer.hidden)), 1e-14);
    EXPECT_LE(MaxDifference(probs.grad(), ToTensor(rank["dprobs"], layer.experts)), 1e-14);
    return absl::OkStatus();
  });
}
INSTANTIATE_TEST_SUITE_P(Megatron, DispatcherGoldenCaseTest,
                         testing::Values("allgather_ep2", "alltoall_ep2", "alltoall_ep2_dropped",
                                         "alltoall_ep2_padded", "allgather_etp2",
                                         "alltoall_etp2_padded"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace muster
