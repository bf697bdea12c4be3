// Helpers of the tests of tensor parallelism: the models, shards cut out of a whole model, and a
// communicator that writes down what passes through it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "test_support.h"
#include "worker/comm/communicator.h"

namespace muster {

// LayerNorm, GELU, biases, learned positions, tied. 8 heads.
TransformerConfig TpGpt2Like();
// RMSNorm, SwiGLU, rope, 8 heads in 4 groups, untied, norms of queries and keys, bias of qkv alone.
TransformerConfig TpLlamaLike();

TensorParallel TensorParallelOver(Communicator& group, bool sequence_parallel);

// One rank's shard of the model, with weights cut out of `whole`. Draws from the seed as MakeModel.
std::unique_ptr<GptModel> MakeShard(const TransformerConfig& config, const TensorParallel& tp,
                                    const std::vector<ParameterPtr>& whole, at::ScalarType dtype,
                                    GptModel::Placement placement);
std::unique_ptr<GptModel> MakeShard(const TransformerConfig& config, const TensorParallel& tp,
                                    const std::vector<ParameterPtr>& whole, at::ScalarType dtype);

// Every parameter not zero nor one, so that no gradient is trivial.
void FillAtRandom(const std::vector<ParameterPtr>& parameters, uint64_t seed);

// main_grad where there is one, else autograd's.
at::Tensor GradOf(const Parameter& parameter);
// After finalize's sum over tp of what each rank has a part of (reference 5.2 step 3).
at::Tensor FinalGradOf(const Parameter& parameter, Communicator& tp);

// Passes everything on; writes "start all-reduce", "wait all-reduce" and so on, and adds up.
class LoggingCommunicator final : public Communicator {
 public:
  struct Traffic {
    int64_t calls = 0, bytes = 0;  // bytes: of a rank's own tensor, before it is gathered or split
    bool operator==(const Traffic&) const = default;
  };
  explicit LoggingCommunicator(Communicator& inner) : inner_(inner) {}

  // "start all-reduce": in the order of events. Add() writes an event of the test's own.
  std::vector<std::string>& events() { return events_; }
  std::map<std::string, Traffic> TakeTraffic() { return std::exchange(traffic_, {}); }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& name() const override { return inner_.name(); }
  const std::vector<int>& ranks() const override { return inner_.ranks(); }
  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override;
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override;
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override;
  WorkPtr AllToAll(at::Tensor, at::Tensor, std::vector<int64_t>, std::vector<int64_t>) override;
  WorkPtr Broadcast(at::Tensor tensor, int root) override;
  WorkPtr SendRecv(std::vector<P2POp> batch) override;
  WorkPtr Barrier() override { return inner_.Barrier(); }
  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    return inner_.Split(std::move(name), std::move(members));
  }
  void Abort(const std::string& reason) override { inner_.Abort(reason); }
  std::string Describe() override { return inner_.Describe(); }

 private:
  WorkPtr Log(const std::string& kind, int64_t bytes, WorkPtr work);

  Communicator& inner_;
  std::vector<std::string> events_;
  std::map<std::string, Traffic> traffic_;
};

}  // namespace muster
