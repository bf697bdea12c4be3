// A small model cut into pipeline stages, in fp64 and plain autograd, and what its losses and
// gradients are without any pipeline.
//
// Stage s of the model: x + tanh(x w_s + b_s), shape (S, B, H); the first stage makes x from token
// ids, the last one gives token losses (B, S).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/parallel/ddp.h"
#include "worker/provider/provider.h"
#include "worker/train/forward_backward.h"

namespace muster {

struct ToyShape {
  int64_t seq = 3, batch = 2, hidden = 4;
  int empty_stage = -1;  // this one has no layer: its output is a view of its input
};

// The microbatches of one data-parallel rank: the same whoever reads them.
class ToyData final : public DataIterator {
 public:
  explicit ToyData(ToyShape shape, int dp_rank = 0) : shape_(shape), dp_rank_(dp_rank) {}
  absl::StatusOr<Batch> Next() override;
  int num_read() const { return next_; }
  // Data end here.
  void FailAt(int microbatch, absl::Status status) {
    fail_at_ = microbatch;
    failure_ = std::move(status);
  }

 private:
  const ToyShape shape_;
  const int dp_rank_;
  int next_ = 0, fail_at_ = -1;
  absl::Status failure_;
};

class ToyChunk final : public ModelChunk {
 public:
  ToyChunk(ToyShape shape, int stage, int num_stages);
  const std::vector<ParameterPtr>& parameters() const override { return parameters_; }
  void SetTraining(bool) override {}
  at::Tensor Forward(const Batch& batch, const at::Tensor& input) override;
  void SetFullRecompute(bool full) override { full_recompute_ = full; }

  std::vector<bool> recomputed;  // by Forward call: what SetFullRecompute had asked for
  // Called at the end of Forward, before it returns.
  std::function<void()> on_forward;
  // Microbatches whose graph is alive: what backward needs is kept.
  int NumGraphs() const;
  // Outputs whose memory is alive.
  int NumOutputs() const;
  bool graphs_wanted = true;  // expectation on grad mode and inputs
  std::vector<std::string> complaints;

 private:
  const ToyShape shape_;
  const int stage_;
  const bool first_, last_, empty_;
  bool full_recompute_ = false;
  std::vector<ParameterPtr> parameters_;
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  std::vector<WeakStorage> saved_, outputs_;
};

class ToyForwardStep final : public ForwardStep {
 public:
  absl::StatusOr<ForwardStepResult> Run(DataIterator& data, ModelChunk& model,
                                        const at::Tensor& input) override;
  int num_losses() const { return num_losses_; }

 private:
  int num_losses_ = 0;
};

// One rank's part: its chunks, its wrapper, its iterators.
struct ToyRank {
  ToyRank(ToyShape shape, const ScheduleOptions& options, int pp_rank, int dp_rank = 0);
  // Over a group of one unless given another.
  absl::Status Wrap(DdpOptions ddp_options = {}, Communicator* dp = nullptr);
  ForwardBackwardOptions PassOptions(const RankSchedule& schedule, Communicator& pp);
  // The next step reads the same microbatches.
  void Rewind();
  // Of what FinishGradSync left, by name.
  absl::StatusOr<std::map<std::string, at::Tensor>> FinishGradients();

  const ToyShape shape;
  const ScheduleOptions options;
  const int dp_rank;
  std::vector<std::unique_ptr<ToyChunk>> chunks;
  std::vector<std::unique_ptr<ToyData>> data;
  ToyForwardStep step;
  CommunicatorPtr alone;
  std::unique_ptr<DistributedDataParallel> ddp;
};

// Without a pipeline: every microbatch through all stages, in order.
struct ToyReference {
  at::Tensor reported;  // [sum, count]
  int64_t num_tokens = 0;
  std::map<std::string, at::Tensor> gradients, weights;
};
// `weights`: by name, instead of the initial ones.
ToyReference RunReference(ToyShape shape, int num_stages, int num_microbatches, int dp_rank = 0,
                          const std::map<std::string, at::Tensor>& weights = {});

// Each rank on a thread; one that fails aborts its world.
std::vector<absl::Status> RunToyRanks(const std::vector<CommunicatorPtr>& world,
                                      const std::function<absl::Status(Communicator& world)>& body);

// "gradient of stage 2's w differs by 3e-4"; empty: all are near.
std::string CompareGradients(const std::map<std::string, at::Tensor>& got, const ToyReference& want,
                             double bound = 1e-12);

}  // namespace muster
