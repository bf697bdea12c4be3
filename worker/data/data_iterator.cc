#include "worker/data/data_iterator.h"

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/dataset/sampler.h"
#include "common/runtime/mutex.h"

namespace muster {
namespace {

std::vector<int64_t> TorchPermutation(int64_t size, int64_t seed) {
  const at::Tensor order =
      at::randperm(size, at::detail::createCPUGenerator(static_cast<uint64_t>(seed)), at::kLong);
  const int64_t* const begin = order.const_data_ptr<int64_t>();
  return std::vector<int64_t>(begin, begin + size);
}

class SampledIterator final : public DataIterator {
 public:
  SampledIterator(std::shared_ptr<const Dataset> dataset, std::unique_ptr<Sampler> sampler)
      : dataset_(std::move(dataset)), sampler_(std::move(sampler)) {}

  absl::StatusOr<Batch> Next() override {
    const std::optional<std::vector<int64_t>> indices = sampler_->Next();
    if (!indices.has_value()) {
      return absl::OutOfRangeError(
          absl::StrCat("end of data: a dataset of ", dataset_->size(), " samples is used up"));
    }
    return dataset_->Collate(*indices);
  }

 private:
  const std::shared_ptr<const Dataset> dataset_;
  const std::unique_ptr<Sampler> sampler_;
};

// Keeps one microbatch ready. After an error the thread ends and every Next returns that error.
class PrefetchingIterator final : public DataIterator {
 public:
  explicit PrefetchingIterator(std::unique_ptr<DataIterator> source)
      : source_(std::move(source)), thread_([this] { Run(); }) {}
  ~PrefetchingIterator() override {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

  absl::StatusOr<Batch> Next() override {
    MutexLock lock(&mu_);
    while (!ready_.has_value()) changed_.Wait(&mu_);
    if (!ready_->ok()) return ready_->status();
    absl::StatusOr<Batch> batch = *std::move(ready_);
    ready_.reset();
    changed_.NotifyAll();
    return batch;
  }

 private:
  void Run() {
    bool more = true;
    while (more) {
      absl::StatusOr<Batch> batch = source_->Next();  // no lock held: the caller trains meanwhile
      more = batch.ok();
      MutexLock lock(&mu_);
      while (ready_.has_value() && !stopping_) changed_.Wait(&mu_);
      if (stopping_) return;
      ready_ = std::move(batch);
      changed_.NotifyAll();
    }
  }

  const std::unique_ptr<DataIterator> source_;  // used by thread_ only
  Mutex mu_;
  CondVar changed_;
  std::optional<absl::StatusOr<Batch>> ready_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the members above
};

absl::StatusOr<std::unique_ptr<Sampler>> MakeSampler(const Dataset& dataset,
                                                     const DataIteratorOptions& options) {
  const SamplerOptions sampler{.total_samples = dataset.size(),
                               .consumed_samples = options.consumed_samples,
                               .micro_batch_size = options.micro_batch_size,
                               .dp_rank = options.dp_rank,
                               .dp_size = options.dp_size};
  if (options.dataloader_type == "single") return MakeSingleSampler(sampler);
  if (options.dataloader_type == "cyclic") {
    return MakeCyclicSampler(sampler, options.data_sharding, TorchPermutation);
  }
  if (options.dataloader_type == "full_validation") return MakeFullValidationSampler(sampler);
  return absl::InvalidArgumentError(
      absl::StrCat("data.dataloader_type=\"", options.dataloader_type,
                   "\" is unknown; known: single, cyclic, full_validation"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataIterator>> MakeDataIterator(
    std::shared_ptr<const Dataset> dataset, const DataIteratorOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Sampler> sampler, MakeSampler(*dataset, options));
  auto iterator = std::make_unique<SampledIterator>(std::move(dataset), std::move(sampler));
  if (!options.prefetch) return iterator;
  return std::make_unique<PrefetchingIterator>(std::move(iterator));
}

}  // namespace muster
