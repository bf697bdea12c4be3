#include "dispatcher_support.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

at::Tensor Leaf(const at::Tensor& tensor) {
  return tensor.detach().clone().set_requires_grad(true);
}

const char* NameOf(Routing routing) {
  switch (routing) {
    case Routing::kTopk:
      return "topk";
    case Routing::kDropped:
      return "dropped";
    case Routing::kPadded:
      return "padded";
    case Routing::kOneExpert:
      return "one_expert";
    case Routing::kIdleRanks:
      return "idle_ranks";
    case Routing::kNothing:
      return "nothing";
  }
  return "?";
}

class LoggedWork final : public Work {
 public:
  LoggedWork(WorkPtr inner, std::string event, std::vector<std::string>& events)
      : inner_(std::move(inner)), event_(std::move(event)), events_(events) {}
  absl::Status Wait() override {
    events_.push_back(event_);
    return inner_->Wait();
  }
  bool IsDone() override { return inner_->IsDone(); }

 private:
  const WorkPtr inner_;
  const std::string event_;
  std::vector<std::string>& events_;
};

}  // namespace

at::Tensor RandomLeaf(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  at::Tensor tensor = at::empty(sizes, at::kDouble);
  double* data = tensor.mutable_data_ptr<double>();
  std::generate(data, data + tensor.numel(), [&] { return uniform(random); });
  return Leaf(tensor.to(dtype));
}

double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (a.numel() == 0) return 0;
  const double difference = (a - b).abs().max().item<double>();
  return difference == difference ? difference : std::numeric_limits<double>::infinity();
}

std::string LayerCase::Name() const {
  return absl::StrCat(dispatcher == TokenDispatcherType::kAllToAll ? "alltoall" : "allgather",
                      "_ep", ep, "_etp", etp, "_", NameOf(routing));
}

MoeConfig ConfigOf(const LayerCase& layer) {
  MoeConfig config;
  config.num_experts = layer.experts;
  config.hidden_size = layer.hidden;
  config.topk = layer.topk;
  config.dispatcher = layer.dispatcher;
  config.pad_to_capacity = layer.routing == Routing::kPadded;
  config.capacity_factor = layer.routing == Routing::kTopk ? 0 : 1;
  return config;
}

WholeLayer MakeLayer(const LayerCase& layer, uint64_t seed) {
  const int64_t ranks = layer.ep * layer.etp, all = ranks * layer.tokens;
  std::mt19937_64 random(seed);
  at::Tensor map = at::zeros({all, layer.experts}, at::kBool);
  auto choose = [&](int64_t token, int64_t expert) {
    map.index_put_({at::tensor(token), at::tensor(expert)}, at::ones({}, at::kBool));
  };
  for (int64_t t = 0; t < all; ++t) {
    std::vector<int64_t> experts(layer.experts);
    std::iota(experts.begin(), experts.end(), 0);
    std::shuffle(experts.begin(), experts.end(), random);
    int64_t chosen = layer.topk;
    if (layer.routing == Routing::kDropped) chosen = random() % (layer.topk + 1);
    if (layer.routing == Routing::kIdleRanks && t >= layer.tokens) chosen = 0;
    if (layer.routing == Routing::kNothing || layer.routing == Routing::kPadded) chosen = 0;
    if (layer.routing == Routing::kOneExpert) chosen = 1, experts[0] = 0;
    for (int64_t i = 0; i < chosen; ++i) choose(t, experts[i]);
  }
  if (layer.routing == Routing::kPadded) {
    const int64_t rows = layer.tokens * layer.topk / layer.experts;  // capacity factor 1
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t e = 0; e < layer.experts; ++e) {
        std::vector<int64_t> tokens(layer.tokens);
        std::iota(tokens.begin(), tokens.end(), rank * layer.tokens);
        std::shuffle(tokens.begin(), tokens.end(), random);
        for (int64_t i = 0; i < rows; ++i) choose(tokens[i], e);
      }
    }
  }
  WholeLayer whole;
  whole.map = map;
  whole.x = RandomLeaf({all, layer.hidden}, seed + 1);
  whole.probs = Leaf(RandomLeaf({all, layer.experts}, seed + 2).detach() * map);
  whole.w1 = RandomLeaf({layer.experts, layer.ffn, layer.hidden}, seed + 3);
  whole.w2 = RandomLeaf({layer.experts, layer.hidden, layer.ffn}, seed + 4);
  whole.loss_weights = RandomLeaf({all, layer.hidden}, seed + 5).detach();
  return whole;
}

void RunReference(WholeLayer& whole) {
  std::vector<at::Tensor> outputs;
  for (int64_t t = 0; t < whole.x.size(0); ++t) {
    at::Tensor sum = whole.x[t] * 0;
    for (int64_t e = 0; e < whole.map.size(1); ++e) {
      if (!whole.map[t][e].item<bool>()) continue;
      sum = sum + whole.w2[e].mv(whole.w1[e].mv(whole.x[t]).tanh() * whole.probs[t][e]);
    }
    outputs.push_back(sum);
  }
  whole.output = at::stack(outputs);
  ((whole.output * whole.loss_weights).sum() + 0 * whole.probs.sum() + 0 * whole.w1.sum() +
   0 * whole.w2.sum())
      .backward();
}

absl::StatusOr<RankGroups> MakeGroups(const LayerCase& layer, const CommunicatorPtr& world) {
  RankGroups result;
  ExpertParallel& g = result.groups;
  g.ep_size = layer.ep;
  g.etp_size = layer.etp;
  g.ep_rank = world->rank() / layer.etp;
  g.etp_rank = world->rank() % layer.etp;
  result.owned.push_back(world);
  if (world->size() > 1) g.tp_ep = world.get();
  for (int t = 0; t < layer.etp && layer.ep > 1; ++t) {
    std::vector<int> members;
    for (int s = 0; s < layer.ep; ++s) members.push_back(s * layer.etp + t);
    ASSIGN_OR_RETURN(CommunicatorPtr group, world->Split(absl::StrCat("ep", t), members));
    if (group != nullptr) g.ep = group.get();
    result.owned.push_back(group);
  }
  for (int s = 0; s < layer.ep && layer.etp > 1; ++s) {
    std::vector<int> members;
    for (int t = 0; t < layer.etp; ++t) members.push_back(s * layer.etp + t);
    ASSIGN_OR_RETURN(CommunicatorPtr group, world->Split(absl::StrCat("etp", s), members));
    if (group != nullptr) g.etp = group.get();
    result.owned.push_back(group);
  }
  return result;
}

RankLayer PartOf(const WholeLayer& whole, const LayerCase& layer, const ExpertParallel& groups) {
  const int64_t rank = groups.ep_rank * layer.etp + groups.etp_rank;
  const int64_t local = layer.experts / layer.ep, slice = layer.ffn / layer.etp;
  auto tokens = [&](const at::Tensor& t) {
    return t.detach().narrow(0, rank * layer.tokens, layer.tokens);
  };
  auto experts = [&](const at::Tensor& w, int64_t ffn_dim) {
    return Leaf(w.detach()
                    .narrow(0, groups.ep_rank * local, local)
                    .narrow(ffn_dim, groups.etp_rank * slice, slice));
  };
  return {.x = Leaf(tokens(whole.x)),
          .probs = Leaf(tokens(whole.probs)),
          .map = tokens(whole.map).clone(),
          .w1 = experts(whole.w1, 1),
          .w2 = experts(whole.w2, 2),
          .loss_weights = tokens(whole.loss_weights)};
}

at::Tensor RunExperts(const RankLayer& part, const Dispatched& dispatched) {
  std::vector<at::Tensor> outputs;
  int64_t begin = 0;
  for (size_t e = 0; e < dispatched.rows_per_expert.size(); ++e) {
    const int64_t rows = dispatched.rows_per_expert[e];
    // As a layer that skips empty experts does: its output then hangs on nothing.
    if (rows > 0) {
      const at::Tensor x = dispatched.tokens.narrow(0, begin, rows);
      const at::Tensor h =
          x.matmul(part.w1[e].t()).tanh() * dispatched.probs.narrow(0, begin, rows).unsqueeze(1);
      outputs.push_back(h.matmul(part.w2[e].t()));
    }
    begin += rows;
  }
  if (outputs.empty()) return at::zeros({0, part.x.size(1)}, part.x.options());
  return at::cat(outputs);
}

WorkPtr PostLog::Log(const std::string& what, WorkPtr work) {
  events_.push_back(absl::StrCat(name_, " post ", what));
  return std::make_shared<LoggedWork>(std::move(work), absl::StrCat(name_, " wait ", what),
                                      events_);
}
WorkPtr PostLog::AllReduce(at::Tensor tensor, ReduceOp op) {
  return Log(absl::StrCat("all_reduce ", tensor.numel()), inner_.AllReduce(tensor, op));
}
WorkPtr PostLog::ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) {
  return Log(absl::StrCat("reduce_scatter ", input.numel()),
             inner_.ReduceScatter(output, input, op));
}
WorkPtr PostLog::AllGather(at::Tensor output, at::Tensor input) {
  return Log(absl::StrCat("all_gather ", input.numel()), inner_.AllGather(output, input));
}
WorkPtr PostLog::AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                          std::vector<int64_t> input_splits) {
  return Log(absl::StrCat("all_to_all ", input.numel()),
             inner_.AllToAll(output, input, std::move(output_splits), std::move(input_splits)));
}
WorkPtr PostLog::Broadcast(at::Tensor tensor, int root) {
  return Log(absl::StrCat("broadcast ", tensor.numel()), inner_.Broadcast(tensor, root));
}
WorkPtr PostLog::SendRecv(std::vector<P2POp> batch) {
  return Log(absl::StrCat("send_recv of ", batch.size()), inner_.SendRecv(std::move(batch)));
}
WorkPtr PostLog::Barrier() { return Log("barrier", inner_.Barrier()); }
absl::StatusOr<CommunicatorPtr> PostLog::Split(std::string, std::vector<int>) {
  return absl::UnimplementedError("not split");
}

}  // namespace muster
