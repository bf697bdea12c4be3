#include "worker/train/job_data.h"

#include <ATen/ATen.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/eval_schedule.h"
#include "common/schedule/from_spec.h"
#include "worker/data/context_slices.h"
#include "worker/data/data_iterator.h"

namespace muster {
namespace {

// Every rank learns whether all succeeded; the failing ones keep their own message.
absl::Status AgreeOnStatus(const absl::Status& mine, Communicator& world, c10::Device device,
                           const char* what) {
  at::Tensor failed =
      at::full({1}, mine.ok() ? 0 : 1, at::TensorOptions().dtype(at::kLong).device(device));
  RETURN_IF_ERROR(world.AllReduce(failed, ReduceOp::kMax)->Wait());
  if (!mine.ok()) return mine;
  if (failed.item<int64_t>() != 0)
    return absl::AbortedError(absl::StrCat(what, " failed on another rank"));
  return absl::OkStatus();
}

bool IsFullValidation(const JobState& state, const std::string& split) {
  return state.spec.data.full_validation && split == "valid";
}

int64_t EvaluationBatch(const JobState& state) {
  return state.spec.evaluation.eval_global_batch_size.value_or(state.sizes.global_batch_size);
}

// Each rank needs something to evaluate: one batch, or a sample of its own.
absl::Status CheckEvaluationSize(const JobState& state, const std::string& split,
                                 const Dataset& dataset) {
  const int64_t batch = EvaluationBatch(state), ranks = state.sizes.data_parallel_size;
  const bool full = IsFullValidation(state, split);
  if (dataset.size() >= (full ? ranks : batch)) return absl::OkStatus();
  const std::string need = full ? absl::StrCat("one for each of ", ranks, " data-parallel ranks")
                                : absl::StrCat("one evaluation batch of ", batch);
  return absl::FailedPreconditionError(
      absl::StrCat("the ", split, " data has ", dataset.size(), " samples, fewer than ", need,
                   ": raise its share in data.split",
                   full ? "" : " or lower evaluation.eval_global_batch_size"));
}

// The place's tokens of every batch, so that models and losses know of no others.
class ContextIterator final : public DataIterator {
 public:
  ContextIterator(std::unique_ptr<DataIterator> data, ContextPlace place)
      : data_(std::move(data)), place_(place) {}

  absl::StatusOr<Batch> Next() override {
    ASSIGN_OR_RETURN(const Batch whole, data_->Next());
    return SliceForContext(whole, place_);
  }

 private:
  const std::unique_ptr<DataIterator> data_;
  const ContextPlace place_;
};

// Batches are collated on the CPU; a GPU's model reads them there.
class DeviceIterator final : public DataIterator {
 public:
  DeviceIterator(std::unique_ptr<DataIterator> data, c10::Device device)
      : data_(std::move(data)), device_(device) {}

  absl::StatusOr<Batch> Next() override {
    ASSIGN_OR_RETURN(Batch batch, data_->Next());
    for (at::Tensor* tensor : {&batch.tokens, &batch.labels, &batch.loss_mask, &batch.position_ids,
                               &batch.attention_mask}) {
      if (tensor->defined()) *tensor = tensor->to(device_, /*non_blocking=*/true);
    }
    return batch;
  }

 private:
  const std::unique_ptr<DataIterator> data_;
  const c10::Device device_;
};

// What a stage without embedding and loss is given: its forward step looks at nothing in it.
class EmptyBatches final : public DataIterator {
 public:
  absl::StatusOr<Batch> Next() override { return Batch(); }
};

// May a chunk's forward pass look at its batch? Providers of a plugin may do what they like; of our
// own, the GPT reads tokens at the first stage, labels at the last, and a mask in every layer.
bool ReadsBatches(const JobState& state, const ChunkLayers& holds) {
  const JobSpec& spec = state.spec;
  const bool ours = spec.model.model_provider == "gpt" && spec.model.forward_step == "gpt" &&
                    (spec.data.dataset_provider == "gpt" || spec.data.dataset_provider == "mock");
  return holds.embedding || holds.loss || spec.data.reset_attention_mask || !ours;
}

absl::StatusOr<DataIterators> MakeIterators(const JobState& state,
                                            const std::shared_ptr<const Dataset>& dataset,
                                            const DataIteratorOptions& options) {
  const ContextPlace place{state.parallel.coordinates().cp,
                           static_cast<int>(state.spec.parallel.context_parallel_size)};
  DataIterators iterators;
  for (const ChunkLayers& holds : state.layers) {
    if (!ReadsBatches(state, holds)) {
      iterators.push_back(std::make_unique<EmptyBatches>());
      continue;
    }
    ASSIGN_OR_RETURN(std::unique_ptr<DataIterator> data, MakeDataIterator(dataset, options));
    if (place.size > 1) data = std::make_unique<ContextIterator>(std::move(data), place);
    if (!state.device.is_cpu())
      data = std::make_unique<DeviceIterator>(std::move(data), state.device);
    iterators.push_back(std::move(data));
  }
  return iterators;
}

}  // namespace

absl::StatusOr<JobData> JobData::Build(const JobState& state, const ProviderRegistry& providers,
                                       std::optional<JobData> kept,
                                       std::unique_ptr<WarmData> warm) {
  ASSIGN_OR_RETURN(std::shared_ptr<DatasetProvider> provider,
                   providers.dataset_provider(state.spec.data.dataset_provider));
  const SampleCounts counts = CountSamples(SampleCountOptionsOf(state.spec, state.sizes));
  // Who has lost its data finds the caches that were built for it.
  const bool builds = state.parallel.rank() == 0;
  DatasetRequest request{.spec = state.spec,
                         .sizes = state.sizes,
                         .train_samples = counts.train,
                         .valid_samples = counts.valid,
                         .test_samples = counts.test,
                         .build_cache = builds};
  const auto build = [&]() -> absl::StatusOr<Datasets> {
    if (kept.has_value()) return std::move(kept->datasets_);
    if (warm != nullptr) {
      if (std::optional<Datasets> opened = warm->Take(counts)) return *std::move(opened);
    }
    return provider->Build(request);
  };
  absl::StatusOr<Datasets> datasets = absl::UnknownError("not built");
  if (builds) datasets = build();
  RETURN_IF_ERROR(AgreeOnStatus(builds ? datasets.status() : absl::OkStatus(),
                                state.parallel.world(), state.device, "building the data sets"));
  if (!builds) datasets = build();
  RETURN_IF_ERROR(AgreeOnStatus(datasets.status(), state.parallel.world(), state.device,
                                "opening the data sets"));
  // Not at the end of a long training.
  if (state.spec.evaluation.eval_iters > 0) {
    for (const auto& [split, dataset] :
         {std::pair("valid", datasets->valid), std::pair("test", datasets->test)}) {
      if (dataset != nullptr) RETURN_IF_ERROR(CheckEvaluationSize(state, split, *dataset));
    }
  }
  return JobData(*std::move(datasets));
}

absl::StatusOr<DataIterators> JobData::TrainIterators(const JobState& state) const {
  if (!has_train()) {
    return absl::FailedPreconditionError(
        "data.split leaves no training data: give the first number a share");
  }
  return MakeIterators(state, datasets_.train,
                       {.dataloader_type = state.spec.data.dataloader_type,
                        .micro_batch_size = state.spec.training.micro_batch_size,
                        .consumed_samples = state.progress.consumed_train_samples,
                        .dp_rank = state.parallel.coordinates().dp,
                        .dp_size = state.sizes.data_parallel_size,
                        .data_sharding = state.spec.data.data_sharding});
}

absl::StatusOr<JobData::EvaluationPass> JobData::Evaluation(const JobState& state,
                                                            const std::string& split) const {
  const std::shared_ptr<const Dataset>& dataset =
      split == "valid" ? datasets_.valid : datasets_.test;
  if (dataset == nullptr) return absl::NotFoundError(absl::StrCat("there is no ", split, " data"));
  RETURN_IF_ERROR(CheckEvaluationSize(state, split, *dataset));
  const int64_t micro = state.spec.training.micro_batch_size;
  const int64_t dp = state.sizes.data_parallel_size;
  const int dp_rank = state.parallel.coordinates().dp;
  EvaluationPass pass;
  if (IsFullValidation(state, split)) {
    // Rank r takes samples r, r + dp, ...
    pass.eval_iters = (dataset->size() - dp_rank + dp - 1) / dp;
    pass.samples = dataset->size();
    ASSIGN_OR_RETURN(pass.data, MakeIterators(state, dataset,
                                              {.dataloader_type = "full_validation",
                                               .micro_batch_size = 1,
                                               .dp_rank = dp_rank,
                                               .dp_size = dp}));
    return pass;
  }
  const int64_t batch = EvaluationBatch(state);
  pass.micro_batch_size = micro;
  ASSIGN_OR_RETURN(pass.num_microbatches, EvalMicrobatches(batch, micro, dp));
  // A set smaller than asked for is used as far as it goes.
  pass.eval_iters = std::min(state.spec.evaluation.eval_iters, dataset->size() / batch);
  pass.samples = pass.eval_iters * batch;
  int64_t consumed = split == "valid" ? state.progress.consumed_valid_samples : 0;
  if (consumed + pass.samples > dataset->size()) consumed = 0;
  ASSIGN_OR_RETURN(pass.data, MakeIterators(state, dataset,
                                            {.dataloader_type = "single",
                                             .micro_batch_size = micro,
                                             .consumed_samples = consumed,
                                             .dp_rank = dp_rank,
                                             .dp_size = dp}));
  return pass;
}

}  // namespace muster
