// model.model_provider = "gpt": the GPT of worker/model from a spec's model section.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/provider/provider.h"

namespace muster {

class GptModelProvider final : public ModelProvider {
 public:
  // UNIMPLEMENTED or INVALID_ARGUMENT with the field; UNAVAILABLE and the like when the tied
  // embedding cannot be shared between first and last stage.
  absl::StatusOr<std::unique_ptr<ModelChunk>> Build(const ModelBuildContext& context) override;
};

}  // namespace muster
