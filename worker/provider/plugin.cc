#include "worker/provider/plugin.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "worker/provider/plugin_api.h"

namespace muster {
namespace {

absl::StatusOr<std::string> RealPath(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(path.c_str(), nullptr),
                                                         &std::free);
  if (real == nullptr) {
    return absl::NotFoundError(absl::StrCat("plugin='", path, "': ", std::strerror(errno)));
  }
  return std::string(real.get());
}

absl::Status CheckNotWorldWritable(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat("plugin: '", path, "': ", std::strerror(errno)));
  }
  if ((info.st_mode & S_IWOTH) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "plugin: '", path, "' is writable by everybody; anybody could replace it: chmod o-w"));
}

template <typename Function>
Function* Symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

absl::StatusOr<std::string> CheckPluginPath(const std::string& path,
                                            const std::vector<std::string>& allowed_folders) {
  if (!absl::StartsWith(path, "/")) {
    return absl::InvalidArgumentError(
        absl::StrCat("plugin='", path, "': must be an absolute path"));
  }
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "..") {
      return absl::InvalidArgumentError(
          absl::StrCat("plugin='", path, "': must not contain '..'; name the file's own path"));
    }
  }
  if (allowed_folders.empty()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "plugin='", path, "': this worker allows no plugins; its operator must allow a folder"));
  }
  ASSIGN_OR_RETURN(const std::string real, RealPath(path));
  for (const std::string& folder : allowed_folders) {
    const absl::StatusOr<std::string> real_folder = RealPath(folder);
    if (!real_folder.ok() || !absl::StartsWith(real, *real_folder + "/")) continue;
    struct stat info = {};
    if (::stat(real.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
      return absl::NotFoundError(absl::StrCat("plugin='", path, "': not a regular file"));
    }
    // The file and every folder from it up to the allowed one.
    std::string at = real;
    while (true) {
      RETURN_IF_ERROR(CheckNotWorldWritable(at));
      if (at == *real_folder) return real;
      at.resize(at.rfind('/'));
    }
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "plugin='", path, "'", real == path ? "" : absl::StrCat(" (really '", real, "')"),
      ": not in a folder that this worker's operator allowed: ",
      absl::StrJoin(allowed_folders, ", ")));
}

absl::Status LoadPlugin(const std::string& path, const std::vector<std::string>& allowed_folders,
                        ProviderRegistry& registry) {
  ASSIGN_OR_RETURN(const std::string real, CheckPluginPath(path, allowed_folders));
  // RTLD_NOW: a missing symbol is found here, not in the middle of training.
  void* library = ::dlopen(real.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("plugin='", path, "': cannot be loaded: ", ::dlerror()));
  }
  auto* version = Symbol<int()>(library, "muster_plugin_abi_version");
  auto* build = Symbol<const char*()>(library, "muster_plugin_build");
  auto* add = Symbol<void(ProviderRegistry*, std::string*)>(library, "muster_plugin_register");
  if (version == nullptr || build == nullptr || add == nullptr) {
    ::dlclose(library);
    return absl::FailedPreconditionError(
        absl::StrCat("plugin='", path,
                     "': not a Muster plugin: it lacks muster_plugin_abi_version, "
                     "muster_plugin_build or muster_plugin_register; use MUSTER_PLUGIN of "
                     "worker/provider/plugin_api.h"));
  }
  absl::Status fits;
  if (version() != kPluginAbiVersion) {
    fits = absl::FailedPreconditionError(
        absl::StrCat("plugin='", path, "': has plugin ABI version ", version(),
                     ", this trainer has ", kPluginAbiVersion, "; rebuild the plugin"));
  } else if (std::strcmp(build(), kPluginBuild) != 0) {
    fits = absl::FailedPreconditionError(absl::StrCat("plugin='", path, "': was built with '",
                                                      build(), "', this trainer with '",
                                                      kPluginBuild, "'; rebuild the plugin"));
  }
  if (!fits.ok()) {
    ::dlclose(library);
    return fits;
  }
  std::string error;
  add(&registry, &error);
  if (error.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("plugin='", path, "': its registration failed: ", error));
}

}  // namespace muster
