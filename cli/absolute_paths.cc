#include "cli/absolute_paths.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/spec/data_blend.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

// Collects what has to be set, in the form of --set.
class Settings {
 public:
  explicit Settings(const std::string& folder) : folder_(folder) {}

  void Add(absl::string_view field, const std::optional<std::string>& path) {
    if (path && IsRelative(*path)) Set(field, Absolute(*path));
  }
  // Prefixes, or weight and prefix in turn.
  void AddBlend(absl::string_view field, std::vector<std::string> items) {
    const bool weighted = !ParseBlend(items).weights.empty();
    bool changed = false;
    for (size_t i = weighted ? 1 : 0; i < items.size(); i += weighted ? 2 : 1) {
      if (!IsRelative(items[i])) continue;
      items[i] = Absolute(items[i]);
      changed = true;
    }
    if (changed) Set(field, items);
  }
  const std::vector<std::string>& all() const { return all_; }

 private:
  static bool IsRelative(const std::string& path) { return !path.empty() && path[0] != '/'; }
  std::string Absolute(const std::string& path) const {
    return (std::filesystem::path(folder_) / path).string();
  }
  void Set(absl::string_view field, const nlohmann::json& value) {
    all_.push_back(absl::StrCat(field, "=", value.dump()));
  }

  const std::string folder_;
  std::vector<std::string> all_;
};

}  // namespace

absl::Status MakePathsAbsolute(const std::string& folder, LoadedSpec* loaded) {
  const JobSpec& spec = loaded->spec;
  Settings settings(folder);
  settings.Add("plugin", spec.plugin);
  settings.AddBlend("data.data_path", spec.data.data_path);
  settings.AddBlend("data.train_data_path", spec.data.train_data_path);
  settings.AddBlend("data.valid_data_path", spec.data.valid_data_path);
  settings.AddBlend("data.test_data_path", spec.data.test_data_path);
  settings.Add("data.data_cache_path", spec.data.data_cache_path);
  settings.Add("data.tokenizer_model", spec.data.tokenizer_model);
  settings.Add("checkpoint.save", spec.checkpoint.save);
  settings.Add("checkpoint.load", spec.checkpoint.load);
  settings.Add("checkpoint.pretrained_checkpoint", spec.checkpoint.pretrained_checkpoint);
  if (settings.all().empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(loaded->json, ApplySetOptions(loaded->json, settings.all()));
  loaded->spec = ParseJobSpec(loaded->json).spec;
  return absl::OkStatus();
}

absl::Status MakePathsAbsolute(LoadedSpec* loaded) {
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string();
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("the working folder can't be told: ", error.message()));
  }
  return MakePathsAbsolute(folder, loaded);
}

}  // namespace muster
