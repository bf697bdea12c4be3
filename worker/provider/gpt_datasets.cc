#include "worker/provider/gpt_datasets.h"

#include <utility>

#include "common/base/status.h"
#include "worker/data/build_datasets.h"

namespace muster {
namespace {

BuildDatasetsOptions OptionsOf(const DatasetRequest& request) {
  return {.spec = request.spec,
          .sizes = request.sizes,
          .train_samples = request.train_samples,
          .valid_samples = request.valid_samples,
          .test_samples = request.test_samples,
          .build_cache = request.build_cache};
}

Datasets Take(BuiltDatasets built) {
  return {.train = std::move(built.train),
          .valid = std::move(built.valid),
          .test = std::move(built.test)};
}

}  // namespace

absl::StatusOr<Datasets> GptDatasetProvider::Build(const DatasetRequest& request) {
  ASSIGN_OR_RETURN(BuiltDatasets built, BuildGptDatasets(OptionsOf(request)));
  return Take(std::move(built));
}

absl::StatusOr<Datasets> MockDatasetProvider::Build(const DatasetRequest& request) {
  ASSIGN_OR_RETURN(BuiltDatasets built, BuildMockDatasets(OptionsOf(request)));
  return Take(std::move(built));
}

}  // namespace muster
