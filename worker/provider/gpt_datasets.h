// data.dataset_provider = "gpt" and "mock": the datasets of worker/data behind the provider
// interface.
#pragma once

#include "absl/status/statusor.h"
#include "worker/provider/provider.h"

namespace muster {

class GptDatasetProvider final : public DatasetProvider {
 public:
  absl::StatusOr<Datasets> Build(const DatasetRequest& request) override;
};

class MockDatasetProvider final : public DatasetProvider {
 public:
  absl::StatusOr<Datasets> Build(const DatasetRequest& request) override;
};

}  // namespace muster
