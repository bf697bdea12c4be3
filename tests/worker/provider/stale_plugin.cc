// A library of another plugin ABI: must be refused before it registers anything.
#include <cstdlib>

extern "C" __attribute__((visibility("default"))) int muster_plugin_abi_version() { return 0; }
extern "C" __attribute__((visibility("default"))) const char* muster_plugin_build() { return ""; }
extern "C" __attribute__((visibility("default"))) void muster_plugin_register(void*, void*) {
  std::abort();
}
