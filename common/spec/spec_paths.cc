#include "common/spec/spec_paths.h"

#include "common/spec/data_blend.h"

namespace muster {

std::vector<SpecPath> SpecPaths(const JobSpec& spec) {
  using Need = SpecPath::Need;
  std::vector<SpecPath> paths;
  const auto add = [&](const char* field, const std::optional<std::string>& path, Need need) {
    if (path) paths.push_back({field, *path, need});
  };
  const auto add_data = [&](const char* field, const std::vector<std::string>& items) {
    for (const std::string& prefix : ParseBlend(items).prefixes) {
      for (const char* extension : {".idx", ".bin"}) {
        paths.push_back({field, prefix + extension, Need::kReadableFile});
      }
    }
  };
  add("plugin", spec.plugin, Need::kReadableFile);
  add_data("data.data_path", spec.data.data_path);
  add_data("data.train_data_path", spec.data.train_data_path);
  add_data("data.valid_data_path", spec.data.valid_data_path);
  add_data("data.test_data_path", spec.data.test_data_path);
  add("data.data_cache_path", spec.data.data_cache_path, Need::kWritableFolder);
  add("data.tokenizer_model", spec.data.tokenizer_model, Need::kReadableFile);
  add("checkpoint.save", spec.checkpoint.save, Need::kWritableFolder);
  // Without this flag a missing load folder means a fresh start.
  if (spec.checkpoint.exit_on_missing_checkpoint) {
    add("checkpoint.load", spec.checkpoint.load, Need::kReadableFolder);
  }
  add("checkpoint.pretrained_checkpoint", spec.checkpoint.pretrained_checkpoint,
      Need::kReadableFolder);
  return paths;
}

}  // namespace muster
