#include "worker/train/warm_data.h"

#include <exception>
#include <string>
#include <thread>

#include "common/base/status.h"
#include "common/schedule/from_spec.h"
#include "common/spec/spec_json.h"
#include "common/tokenizer/tokenizer.h"

namespace muster {

std::unique_ptr<WarmData> WarmData::Begin(const JobSpec& spec, const ProviderRegistry& providers,
                                          bool build_cache) {
  const std::string& name = spec.data.dataset_provider;
  if (name != "gpt" && name != "mock") return nullptr;
  absl::StatusOr<std::shared_ptr<DatasetProvider>> provider = providers.dataset_provider(name);
  if (!provider.ok()) return nullptr;
  std::packaged_task<absl::StatusOr<Opened>()> open(
      [spec, provider = *std::move(provider), build_cache]() -> absl::StatusOr<Opened> {
        try {
          return Open(spec, *provider, build_cache);
        } catch (const std::exception& error) {
          return absl::InternalError(error.what());
        }
      });
  std::unique_ptr<WarmData> warm(new WarmData(open.get_future()));
  std::thread(std::move(open)).detach();
  return warm;
}

absl::StatusOr<WarmData::Opened> WarmData::Open(const JobSpec& spec, DatasetProvider& provider,
                                                bool build_cache) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   MakeTokenizer(spec.data.tokenizer_type, spec.data.tokenizer_model));
  const ResolvedSpec sizes = Resolve(spec, tokenizer->vocab_size());
  Opened opened{.counts = CountSamples(SampleCountOptionsOf(spec, sizes))};
  ASSIGN_OR_RETURN(opened.datasets, provider.Build({.spec = spec,
                                                    .sizes = sizes,
                                                    .train_samples = opened.counts.train,
                                                    .valid_samples = opened.counts.valid,
                                                    .test_samples = opened.counts.test,
                                                    .build_cache = build_cache}));
  return opened;
}

std::optional<Datasets> WarmData::Take(const SampleCounts& wanted) {
  if (!opened_.valid()) return std::nullopt;
  absl::StatusOr<Opened> opened = opened_.get();
  if (!opened.ok()) return std::nullopt;
  const SampleCounts& counts = opened->counts;
  const bool fits =
      counts.train == wanted.train && counts.valid == wanted.valid && counts.test == wanted.test;
  if (!fits) return std::nullopt;
  return std::move(opened->datasets);
}

}  // namespace muster
