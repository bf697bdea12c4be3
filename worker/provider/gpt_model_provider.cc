#include "worker/provider/gpt_model_provider.h"

#include <utility>

#include "common/base/status.h"
#include "worker/model/gpt.h"

namespace muster {

absl::StatusOr<std::unique_ptr<ModelChunk>> GptModelProvider::Build(
    const ModelBuildContext& context) {
  ASSIGN_OR_RETURN(std::unique_ptr<GptModel> model, GptModel::Create(context));
  return std::unique_ptr<ModelChunk>(std::move(model));
}

}  // namespace muster
