// Loads a user's shared library with providers (plugin_api.h) into a registry.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/provider/provider.h"

namespace muster {

// The real path of `path` if it is a regular file inside one of the allowed folders, after all
// symbolic links are resolved. INVALID_ARGUMENT: not absolute, or '..' in it; NOT_FOUND: no such
// file; PERMISSION_DENIED: outside of every allowed folder, or none is allowed;
// FAILED_PRECONDITION: file or folder is writable by everybody.
absl::StatusOr<std::string> CheckPluginPath(const std::string& path,
                                            const std::vector<std::string>& allowed_folders);

// Checks the path, loads the library, compares ABI version and build, and lets it register. The
// library stays loaded for the process's life, since what it registered lives in it. Errors of
// CheckPluginPath; FAILED_PRECONDITION: not loadable, not a plugin, or built for another Muster;
// INVALID_ARGUMENT: its own registration failed. A registration that fails half-way may leave some
// of its names behind: end the trainer.
absl::Status LoadPlugin(const std::string& path, const std::vector<std::string>& allowed_folders,
                        ProviderRegistry& registry);

}  // namespace muster
