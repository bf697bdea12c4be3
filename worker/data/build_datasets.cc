#include "worker/data/build_datasets.h"

#include <string>

#include "common/base/status.h"
#include "common/dataset/gpt_datasets.h"
#include "common/runtime/log.h"
#include "common/tokenizer/tokenizer.h"
#include "worker/data/gpt_dataset.h"

namespace muster {
namespace {

GptDatasetsOptions OptionsOf(const BuildDatasetsOptions& options, const std::string& split) {
  const DataSpec& data = options.spec.data;
  return {.seq_length = options.spec.model.seq_length,
          .seed = options.spec.training.seed,
          .data_path = data.data_path,
          .split_data_path = {data.train_data_path, data.valid_data_path, data.test_data_path},
          .split = data.split.value_or(split),
          .num_samples = {options.train_samples, options.valid_samples, options.test_samples},
          .cache_path = data.data_cache_path.value_or(""),
          .build_cache = options.build_cache};
}

BuiltDatasets Wrap(const BuildDatasetsOptions& options, const GptDatasets& samples, int64_t eod,
                   std::optional<int64_t> pad) {
  for (const std::string& note : samples.notes) MUSTER_LOG(kWarning) << "data: " << note;
  const DataSpec& data = options.spec.data;
  const GptSampleOptions sample_options{
      .seq_length = options.spec.model.seq_length,
      .eod = eod,
      // A padding id that is also the end of document would take real tokens out of the loss.
      .pad = pad.has_value() && *pad != eod ? *pad : kNoToken,
      .reset_position_ids = data.reset_position_ids,
      .reset_attention_mask = data.reset_attention_mask,
      .eod_mask_loss = data.eod_mask_loss};
  const auto wrap = [&](Split split) -> std::shared_ptr<const Dataset> {
    const auto& source = samples.samples[static_cast<size_t>(split)];
    if (source == nullptr) return nullptr;
    return std::make_shared<GptDataset>(source, sample_options, options.sizes.vocab_size);
  };
  return {.train = wrap(Split::kTrain), .valid = wrap(Split::kValid), .test = wrap(Split::kTest)};
}

}  // namespace

absl::StatusOr<BuiltDatasets> BuildGptDatasets(const BuildDatasetsOptions& options) {
  const DataSpec& data = options.spec.data;
  if (data.data_path.empty() && data.train_data_path.empty() && data.valid_data_path.empty() &&
      data.test_data_path.empty()) {
    return BuildMockDatasets(options);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   MakeTokenizer(data.tokenizer_type, data.tokenizer_model));
  GptDatasetsOptions gpt = OptionsOf(options, "969, 30, 1");
  gpt.tokenizer = tokenizer->identity();
  ASSIGN_OR_RETURN(const GptDatasets samples, BuildGptSamples(gpt));
  return Wrap(options, samples, tokenizer->eod(), tokenizer->pad());
}

absl::StatusOr<BuiltDatasets> BuildMockDatasets(const BuildDatasetsOptions& options) {
  // The last token of the vocabulary ends a mock document.
  const int64_t vocab_size = options.sizes.vocab_size;
  GptDatasetsOptions mock = OptionsOf(options, "1,1,1");
  mock.tokenizer = "mock";
  ASSIGN_OR_RETURN(const GptDatasets samples, BuildMockSamples(mock, vocab_size));
  return Wrap(options, samples, vocab_size - 1, std::nullopt);
}

}  // namespace muster
