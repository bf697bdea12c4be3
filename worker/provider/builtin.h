// The providers that come with Muster.
#pragma once

#include "worker/provider/provider.h"

namespace muster {

// Model provider and forward step "gpt", dataset providers "gpt" and "mock". Into a registry that
// has none of these names yet.
void RegisterBuiltinProviders(ProviderRegistry& registry);

}  // namespace muster
