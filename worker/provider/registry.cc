#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/spec/nearest_name.h"
#include "worker/provider/provider.h"

namespace muster {
namespace {

template <typename T>
absl::Status AddTo(std::map<std::string, std::shared_ptr<T>>& table, absl::string_view what,
                   const std::string& name, std::shared_ptr<T> value) {
  if (name.empty() || value == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " '", name, "': needs a name and a value"));
  }
  if (!table.emplace(name, std::move(value)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat(what, " '", name, "' is registered already; choose another name"));
  }
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<std::shared_ptr<T>> Find(const std::map<std::string, std::shared_ptr<T>>& table,
                                        absl::string_view field, const std::string& name) {
  const auto found = table.find(name);
  if (found != table.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [key, value] : table) known.push_back(key);
  const std::string nearest = NearestName(name, known);
  return absl::NotFoundError(
      absl::StrCat(field, "='", name, "': no such provider; known: ", absl::StrJoin(known, ", "),
                   nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"),
                   " (a plugin may add others)"));
}

}  // namespace

absl::Status ProviderRegistry::AddModelProvider(const std::string& name,
                                                std::shared_ptr<ModelProvider> provider) {
  return AddTo(models_, "model provider", name, std::move(provider));
}

absl::Status ProviderRegistry::AddForwardStep(const std::string& name,
                                              std::shared_ptr<ForwardStep> step) {
  return AddTo(steps_, "forward step", name, std::move(step));
}

absl::Status ProviderRegistry::AddDatasetProvider(const std::string& name,
                                                  std::shared_ptr<DatasetProvider> provider) {
  return AddTo(datasets_, "dataset provider", name, std::move(provider));
}

absl::StatusOr<std::shared_ptr<ModelProvider>> ProviderRegistry::model_provider(
    const std::string& name) const {
  return Find(models_, "model.model_provider", name);
}

absl::StatusOr<std::shared_ptr<ForwardStep>> ProviderRegistry::forward_step(
    const std::string& name) const {
  return Find(steps_, "model.forward_step", name);
}

absl::StatusOr<std::shared_ptr<DatasetProvider>> ProviderRegistry::dataset_provider(
    const std::string& name) const {
  return Find(datasets_, "data.dataset_provider", name);
}

}  // namespace muster
