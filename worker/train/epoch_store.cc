#include "worker/train/epoch_store.h"

#include "absl/strings/escaping.h"

namespace muster {
namespace {

// A coordinator that is started again must be back within this; the end of the epoch ends it too.
constexpr absl::Duration kSetLimit = absl::Minutes(5);

}  // namespace

absl::Status EpochStore::Set(const std::string& key, const std::string& value) {
  StoreRequestMessage request;
  request.epoch = epoch_;
  request.op = StoreRequestMessage::Op::kSet;
  request.key = key;
  request.value = absl::BytesToHexString(value);
  request.limit_ms = absl::ToInt64Milliseconds(kSetLimit);
  return client_->StoreCall(std::move(request), kSetLimit).status();
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> EpochStore::WaitPrefix(
    const std::string& prefix, int count, absl::Duration limit) {
  StoreRequestMessage request;
  request.epoch = epoch_;
  request.op = StoreRequestMessage::Op::kWaitPrefix;
  request.key = prefix;
  request.count = count;
  request.limit_ms = absl::ToInt64Milliseconds(limit);
  auto entries = client_->StoreCall(std::move(request), limit);
  if (!entries.ok()) return entries.status();
  for (auto& [key, value] : *entries) value = absl::HexStringToBytes(value);
  return entries;
}

}  // namespace muster
