// The header for people who write a plugin: a shared library that adds model providers, forward
// steps and dataset providers of their own to a trainer (spec field `plugin`).
//
//   #include "worker/provider/plugin_api.h"
//
//   absl::Status RegisterMine(muster::ProviderRegistry& registry) {
//     return registry.AddForwardStep("mine", std::make_shared<MyForwardStep>());
//   }
//   MUSTER_PLUGIN(RegisterMine)
//
// Build it with the compiler, the LibTorch and the Muster sources of the trainer that loads it
// (examples/plugin has the CMake lines): C++ classes cross the border, so the trainer refuses a
// library whose ABI version or build differs. Then name it in the spec:
//   "plugin": "/opt/muster/plugins/libmine.so",  "model": {"forward_step": "mine", ...}
// The worker's operator must have allowed the folder that it lies in. A plugin runs with the
// trainer's rights and stays loaded until the trainer ends.
#pragma once

#include <exception>
#include <string>

#include <torch/headeronly/version.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/provider/provider.h"

namespace muster {

// Raised whenever provider.h, model_chunk.h, batch.h, parameter.h, rng.h, parallel_context.h,
// communicator.h or job_spec.h change their layout.
inline constexpr int kPluginAbiVersion = 5;

// What both sides must have been compiled with.
#define MUSTER_PLUGIN_STRINGIFY_(x) #x
#define MUSTER_PLUGIN_STRINGIFY(x) MUSTER_PLUGIN_STRINGIFY_(x)
inline constexpr char kPluginBuild[] =
    "torch " TORCH_VERSION ", C++ ABI " MUSTER_PLUGIN_STRINGIFY(__GXX_ABI_VERSION);

}  // namespace muster

// Exports the three symbols that the trainer looks for. Once a library, at namespace scope.
#define MUSTER_PLUGIN(register_function)                                                \
  extern "C" __attribute__((visibility("default"))) int muster_plugin_abi_version() {   \
    return ::muster::kPluginAbiVersion;                                                 \
  }                                                                                     \
  extern "C" __attribute__((visibility("default"))) const char* muster_plugin_build() { \
    return ::muster::kPluginBuild;                                                      \
  }                                                                                     \
  /* `error` stays empty when all went well. */                                         \
  extern "C" __attribute__((visibility("default"))) void muster_plugin_register(        \
      ::muster::ProviderRegistry* registry, ::std::string* error) {                     \
    try {                                                                               \
      const ::absl::Status status = register_function(*registry);                       \
      if (!status.ok()) *error = ::std::string(status.message());                       \
    } catch (const ::std::exception& e) {                                               \
      *error = e.what();                                                                \
    }                                                                                   \
  }
