#include "tests/worker/train_passes/toy_pipeline.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/comm/self_communicator.h"
#include "worker/comm/thread_communicator.h"

namespace muster {
namespace {

constexpr int64_t kVocabulary = 7;

// Any fixed numbers of order 1; no generator, which threads would share.
at::Tensor Numbers(at::IntArrayRef sizes, double phase) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::sin(at::arange(numel, at::kDouble) * 1.7 + phase).mul(0.8).view(sizes);
}

ParameterPtr MakeParameter(const std::string& name, at::IntArrayRef sizes, double phase) {
  auto parameter = std::make_shared<Parameter>();
  parameter->name = name;
  parameter->data = Numbers(sizes, phase).set_requires_grad(true);
  return parameter;
}

int CountAlive(const std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>& storages) {
  int alive = 0;
  for (const auto& storage : storages) alive += storage.expired() ? 0 : 1;
  return alive;
}

}  // namespace

absl::StatusOr<Batch> ToyData::Next() {
  const int i = next_++;
  if (i == fail_at_) return failure_;
  const int64_t n = shape_.batch * shape_.seq;
  const int64_t salt = 13 * i + 101 * dp_rank_;
  const at::Tensor k = at::arange(n, at::kLong).view({shape_.batch, shape_.seq});
  Batch batch;
  batch.tokens = k.mul(5).add(salt).remainder(kVocabulary);
  batch.labels = k.mul(3).add(salt).remainder(5);
  // Token counts differ between microbatches.
  batch.loss_mask = k.add(salt).remainder(3 + i % 2).ne(0).to(at::kFloat);
  return batch;
}

ToyChunk::ToyChunk(ToyShape shape, int stage, int num_stages)
    : shape_(shape),
      stage_(stage),
      first_(stage == 0),
      last_(stage == num_stages - 1),
      empty_(stage == shape.empty_stage) {
  if (empty_) return;
  const int64_t h = shape.hidden;
  const auto add = [&](const std::string& name, at::IntArrayRef sizes, double phase) {
    parameters_.push_back(
        MakeParameter(absl::StrCat("stage", stage, ".", name), sizes, stage + phase));
  };
  if (first_) add("embedding", {kVocabulary, h}, 0.1);
  add("w", {h, h}, 0.3);
  add("b", {h}, 0.7);
  if (last_) add("head", {h}, 0.9);
}

at::Tensor ToyChunk::Forward(const Batch& batch, const at::Tensor& input) {
  recomputed.push_back(full_recompute_);
  if (input.defined() == first_) complaints.push_back("input of the wrong stage");
  if (input.defined() && input.requires_grad() != graphs_wanted) {
    complaints.push_back("an input that requires a gradient, or should");
  }
  if (c10::GradMode::is_enabled() != graphs_wanted) complaints.push_back("grad mode");
  if (empty_) return input.view({shape_.seq, shape_.batch, shape_.hidden});
  size_t next = 0;
  at::Tensor x = input;
  if (first_) {
    x = parameters_[next++]
            ->data.index_select(0, batch.tokens.t().reshape({-1}))
            .view({shape_.seq, shape_.batch, shape_.hidden});
  }
  const at::Tensor& w = parameters_[next++]->data;
  const at::Tensor& b = parameters_[next++]->data;
  const at::Tensor inner = at::tanh(at::matmul(x, w) + b);
  saved_.push_back(inner.storage().getWeakStorageImpl());
  at::Tensor output = x + inner;
  if (last_) {
    const at::Tensor scores = at::matmul(output, parameters_[next]->data).t();  // (B, S)
    output = (scores - batch.labels).square();
  }
  outputs_.push_back(output.storage().getWeakStorageImpl());
  if (on_forward) on_forward();
  return output;
}

int ToyChunk::NumGraphs() const { return CountAlive(saved_); }
int ToyChunk::NumOutputs() const { return CountAlive(outputs_); }

absl::StatusOr<ForwardStepResult> ToyForwardStep::Run(DataIterator& data, ModelChunk& model,
                                                      const at::Tensor& input) {
  ASSIGN_OR_RETURN(const Batch batch, data.Next());
  ForwardStepResult result;
  result.output = model.Forward(batch, input);
  result.loss_function = [this, mask = batch.loss_mask](const at::Tensor& losses) {
    ++num_losses_;
    const at::Tensor m = mask.to(at::kDouble);
    LossResult loss;
    loss.loss_sum = (losses * m).sum();
    loss.num_tokens = m.sum().to(at::kLong);
    loss.reported["lm loss"] = at::stack({loss.loss_sum.detach(), m.sum()});
    return loss;
  };
  return result;
}

ToyRank::ToyRank(ToyShape shape_, const ScheduleOptions& options_, int pp_rank, int dp_rank_)
    : shape(shape_), options(options_), dp_rank(dp_rank_), alone(MakeSelfCommunicator("alone", 0)) {
  for (int chunk = 0; chunk < options.virtual_pp; ++chunk) {
    chunks.push_back(std::make_unique<ToyChunk>(shape, chunk * options.pp + pp_rank,
                                                options.pp * options.virtual_pp));
    chunks.back()->graphs_wanted = !options.forward_only;
  }
  Rewind();
}

void ToyRank::Rewind() {
  data.clear();
  for (size_t i = 0; i < chunks.size(); ++i) {
    data.push_back(std::make_unique<ToyData>(shape, dp_rank));
  }
}

absl::Status ToyRank::Wrap(DdpOptions ddp_options, Communicator* dp) {
  std::vector<std::vector<ParameterPtr>> parameters;
  for (const auto& chunk : chunks) parameters.push_back(chunk->parameters());
  Communicator* const group = dp == nullptr ? alone.get() : dp;
  ASSIGN_OR_RETURN(
      ddp, DistributedDataParallel::Create(std::move(parameters),
                                           {.dp_cp = group, .expert_dp = group}, ddp_options));
  return absl::OkStatus();
}

ForwardBackwardOptions ToyRank::PassOptions(const RankSchedule& schedule, Communicator& pp) {
  ForwardBackwardOptions run{.schedule = schedule,
                             .num_microbatches = options.num_microbatches,
                             .forward_step = step,
                             .ddp = options.forward_only ? nullptr : ddp.get(),
                             .pp = &pp,
                             .hidden_shape = {shape.seq, shape.batch, shape.hidden},
                             .hidden_dtype = at::kDouble,
                             .overlap_p2p_comm = options.overlap_p2p_comm};
  for (const auto& chunk : chunks) run.chunks.push_back(chunk.get());
  for (const auto& iterator : data) run.data.push_back(iterator.get());
  return run;
}

absl::StatusOr<std::map<std::string, at::Tensor>> ToyRank::FinishGradients() {
  std::map<std::string, at::Tensor> gradients;
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    RETURN_IF_ERROR(ddp->FinishGradSync(static_cast<int>(chunk)));
    for (const ParameterPtr& parameter : chunks[chunk]->parameters()) {
      gradients[parameter->name] = parameter->main_grad.clone();
    }
  }
  return gradients;
}

ToyReference RunReference(ToyShape shape, int num_stages, int num_microbatches, int dp_rank,
                          const std::map<std::string, at::Tensor>& weights) {
  std::vector<std::unique_ptr<ToyChunk>> stages;
  for (int stage = 0; stage < num_stages; ++stage) {
    stages.push_back(std::make_unique<ToyChunk>(shape, stage, num_stages));
    for (const ParameterPtr& parameter : stages.back()->parameters()) {
      const auto weight = weights.find(parameter->name);
      if (weight == weights.end()) continue;
      c10::NoGradGuard no_grad;
      parameter->data.copy_(weight->second);
    }
  }
  ToyReference reference;
  reference.reported = at::zeros({2}, at::kDouble);
  ToyData data(shape, dp_rank);
  for (int i = 0; i < num_microbatches; ++i) {
    const Batch batch = *data.Next();
    at::Tensor x;
    for (const auto& stage : stages) x = stage->Forward(batch, x);
    const at::Tensor mask = batch.loss_mask.to(at::kDouble), count = mask.sum();
    const at::Tensor sum = (x * mask).sum();
    torch::autograd::backward({sum / count.clamp_min(1) / num_microbatches}, {});
    reference.reported += at::stack({sum.detach(), count});
    reference.num_tokens += count.item<int64_t>();
  }
  for (const auto& stage : stages) {
    for (const ParameterPtr& parameter : stage->parameters()) {
      reference.gradients[parameter->name] = parameter->data.grad();
      reference.weights[parameter->name] = parameter->data.detach();
    }
  }
  return reference;
}

std::vector<absl::Status> RunToyRanks(
    const std::vector<CommunicatorPtr>& world,
    const std::function<absl::Status(Communicator& world)>& body) {
  std::vector<absl::Status> results(world.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        results[rank] = body(*world[rank]);
      } catch (const CollectiveError& error) {
        results[rank] = error.status;
      } catch (const std::exception& error) {
        results[rank] = absl::InternalError(error.what());
      }
      if (!results[rank].ok()) world[rank]->Abort(std::string(results[rank].message()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::string CompareGradients(const std::map<std::string, at::Tensor>& got, const ToyReference& want,
                             double bound) {
  std::string text;
  for (const auto& [name, gradient] : got) {
    const double difference = (gradient - want.gradients.at(name)).abs().max().item<double>();
    if (!(difference <= bound)) {
      absl::StrAppend(&text, "gradient of ", name, " differs by ", difference, "\n");
    }
  }
  return text;
}

}  // namespace muster
