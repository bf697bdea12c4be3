#include "worker/provider/builtin.h"

#include <memory>

#include "common/base/check.h"
#include "worker/provider/gpt_datasets.h"
#include "worker/provider/gpt_forward_step.h"
#include "worker/provider/gpt_model_provider.h"

namespace muster {

void RegisterBuiltinProviders(ProviderRegistry& registry) {
  MUSTER_CHECK(registry.AddModelProvider("gpt", std::make_shared<GptModelProvider>()).ok());
  MUSTER_CHECK(registry.AddForwardStep("gpt", std::make_shared<GptForwardStep>()).ok());
  MUSTER_CHECK(registry.AddDatasetProvider("gpt", std::make_shared<GptDatasetProvider>()).ok());
  MUSTER_CHECK(registry.AddDatasetProvider("mock", std::make_shared<MockDatasetProvider>()).ok());
}

}  // namespace muster
