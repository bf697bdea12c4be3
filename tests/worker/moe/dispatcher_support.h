// Small MoE layers for the dispatchers' tests: routed tokens of several ranks, experts that are
// split over ranks, and the same layer on one process as a loop over tokens and experts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/moe/token_dispatcher.h"

namespace muster {

// Uniform in [-1, 1), a leaf with gradient.
at::Tensor RandomLeaf(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kDouble);

double MaxDifference(const at::Tensor& a, const at::Tensor& b);

// Which experts the tokens of all ranks go to.
enum class Routing {
  kTopk,       // each to `topk`
  kDropped,    // to fewer, some to none
  kPadded,     // exactly the capacity's rows an expert and rank
  kOneExpert,  // all to expert 0: most ranks get no rows
  kIdleRanks,  // only the first rank has rows to send
  kNothing,    // nobody has
};

struct LayerCase {
  int ep = 1, etp = 1;
  TokenDispatcherType dispatcher = TokenDispatcherType::kAllToAll;
  Routing routing = Routing::kTopk;
  int64_t experts = 4, topk = 2, tokens = 6, hidden = 3, ffn = 4;
  std::string Name() const;
};
MoeConfig ConfigOf(const LayerCase& layer);

// All ranks' tokens one behind the other, in the order of tp_ep, and all experts.
struct WholeLayer {
  at::Tensor x, probs, map;  // (n T, H), (n T, E): leaves
  at::Tensor w1, w2;         // (E, F, H), (E, H, F): leaves
  at::Tensor loss_weights;   // (n T, H)
  at::Tensor output;         // set by RunReference, which also sets the leaves' gradients
};
WholeLayer MakeLayer(const LayerCase& layer, uint64_t seed);
// A loop over tokens and experts; the loss is the sum of output * loss_weights.
void RunReference(WholeLayer& whole);

// One rank's groups, cut out of a world of ep * etp.
struct RankGroups {
  ExpertParallel groups;
  std::vector<CommunicatorPtr> owned;
};
absl::StatusOr<RankGroups> MakeGroups(const LayerCase& layer, const CommunicatorPtr& world);

// This rank's part of `whole`, as leaves.
struct RankLayer {
  at::Tensor x, probs, map, w1, w2, loss_weights;
};
RankLayer PartOf(const WholeLayer& whole, const LayerCase& layer, const ExpertParallel& groups);
// Rows, weights and this rank's experts -> outputs (R, H), each rank's share of the sum over etp.
at::Tensor RunExperts(const RankLayer& part, const Dispatched& dispatched);

// Writes down what is posted and waited for: "ep post all_to_all 12", "ep wait all_to_all 12"
// (elements of the input).
class PostLog final : public Communicator {
 public:
  PostLog(Communicator& inner, std::string name, std::vector<std::string>& events)
      : inner_(inner), name_(std::move(name)), events_(events) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& name() const override { return name_; }
  const std::vector<int>& ranks() const override { return inner_.ranks(); }
  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override;
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override;
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override;
  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override;
  WorkPtr Broadcast(at::Tensor tensor, int root) override;
  WorkPtr SendRecv(std::vector<P2POp> batch) override;
  WorkPtr Barrier() override;
  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override;
  void Abort(const std::string& reason) override { inner_.Abort(reason); }
  std::string Describe() override { return inner_.Describe(); }

 private:
  WorkPtr Log(const std::string& what, WorkPtr work);

  Communicator& inner_;
  const std::string name_;
  std::vector<std::string>& events_;
};

}  // namespace muster
