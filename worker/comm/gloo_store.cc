#include "worker/comm/gloo_store.h"

#include <stdexcept>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster {

GlooStore::GlooStore(std::shared_ptr<RendezvousStore> store, std::string prefix, int size,
                     absl::Duration limit)
    : store_(std::move(store)), prefix_(std::move(prefix)), size_(size), limit_(limit) {}

absl::Status GlooStore::status() {
  MutexLock lock(&mu_);
  return status_;
}

void GlooStore::ThrowIfFailed(const absl::Status& status) {
  if (status.ok()) return;
  if (status_.ok()) status_ = status;
  throw std::runtime_error(std::string(status.message()));
}

c10::intrusive_ptr<c10d::Store> GlooStore::clone() {
  return c10::make_intrusive<GlooStore>(store_, prefix_, size_, limit_);
}

// Values are binary; they travel as text through JSON lines.
void GlooStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  const absl::string_view bytes(reinterpret_cast<const char*>(value.data()), value.size());
  const absl::Status status = store_->Set(absl::StrCat(prefix_, key), absl::Base64Escape(bytes));
  MutexLock lock(&mu_);
  ThrowIfFailed(status);
}

void GlooStore::FetchLocked() {
  if (fetched_) return;
  auto found = store_->WaitPrefix(prefix_, size_, limit_);
  ThrowIfFailed(found.status());
  for (auto& [key, text] : *found) {
    std::string bytes;
    if (!absl::Base64Unescape(text, &bytes)) {
      ThrowIfFailed(absl::DataLossError(absl::StrCat("rendezvous key ", key, " is not base64")));
    }
    values_[key] = std::move(bytes);
  }
  fetched_ = true;
}

std::vector<uint8_t> GlooStore::get(const std::string& key) {
  MutexLock lock(&mu_);
  FetchLocked();
  const auto found = values_.find(absl::StrCat(prefix_, key));
  if (found == values_.end()) {
    ThrowIfFailed(absl::NotFoundError(
        absl::StrCat("no key ", prefix_, key, " among the ", values_.size(), " of the group")));
  }
  return {found->second.begin(), found->second.end()};
}

bool GlooStore::check(const std::vector<std::string>& keys) {
  wait(keys);
  return true;
}

void GlooStore::wait(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) get(key);
}

void GlooStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) {
  wait(keys);
}

int64_t GlooStore::getNumKeys() {
  MutexLock lock(&mu_);
  return static_cast<int64_t>(values_.size());
}

int64_t GlooStore::add(const std::string& key, int64_t) {
  throw std::logic_error(absl::StrCat("gloo added to key ", key, ": not supported"));
}

bool GlooStore::deleteKey(const std::string& key) {
  throw std::logic_error(absl::StrCat("gloo deleted key ", key, ": not supported"));
}

}  // namespace muster
