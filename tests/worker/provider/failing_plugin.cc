// A plugin whose registration throws.
#include <stdexcept>

#include "worker/provider/plugin_api.h"

namespace {
absl::Status Register(muster::ProviderRegistry&) { throw std::runtime_error("no licence found"); }
}  // namespace

MUSTER_PLUGIN(Register)
