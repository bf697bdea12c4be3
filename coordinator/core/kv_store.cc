#include "coordinator/core/kv_store.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster {

absl::Status KvStore::Set(const std::string& key, const std::string& value,
                          std::vector<Action>* done) {
  if (key.empty() || key.size() > limits_.max_key) {
    return absl::InvalidArgumentError(
        absl::StrCat("key: has ", key.size(), " bytes; must have 1 to ", limits_.max_key));
  }
  if (value.size() > limits_.max_value) {
    return absl::InvalidArgumentError(
        absl::StrCat("value: has ", value.size(), " bytes; may have ", limits_.max_value));
  }
  const auto found = keys_.find(key);
  if (found == keys_.end() && keys_.size() >= limits_.max_keys) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this epoch has ", keys_.size(), " keys, which is the limit"));
  }
  const size_t before = found == keys_.end() ? 0 : key.size() + found->second.size();
  const size_t bytes = bytes_ - before + key.size() + value.size();
  if (bytes > limits_.max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the keys of this epoch would have ", bytes,
                                                     " bytes; limit ", limits_.max_bytes));
  }
  bytes_ = bytes;
  if (found != keys_.end()) {
    found->second = value;
    return absl::OkStatus();  // no count has changed
  }
  keys_.emplace(key, value);
  for (size_t length = 0; length <= key.size(); ++length) {
    const auto entry = prefixes_.find(key.substr(0, length));
    if (entry == prefixes_.end()) continue;
    const int num_keys = ++entry->second.num_keys;
    std::vector<WaitToken> ready;
    for (const WaitToken token : entry->second.waiters) {
      if (waiters_.at(token).count <= num_keys) ready.push_back(token);
    }
    if (ready.empty()) continue;
    const KeyValues entries = Collect(entry->first);
    for (const WaitToken token : ready) {
      done->emplace_back(WaitDone{token, absl::OkStatus(), entries});
      Remove(token);  // may erase the prefix: `entry` is not used again
    }
  }
  return absl::OkStatus();
}

absl::Status KvStore::Wait(const WaitPrefix& wait, absl::Time now, std::vector<Action>* done) {
  if (wait.prefix.size() > limits_.max_key) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefix: has ", wait.prefix.size(), " bytes; may have ", limits_.max_key));
  }
  if (wait.count < 0) {
    return absl::InvalidArgumentError(absl::StrCat("count=", wait.count, ": must be 0 or more"));
  }
  KeyValues entries = Collect(wait.prefix);
  if (static_cast<int>(entries.size()) >= wait.count) {
    done->emplace_back(WaitDone{wait.token, absl::OkStatus(), std::move(entries)});
    return absl::OkStatus();
  }
  if (waiters_.size() >= limits_.max_waiters) {
    return absl::ResourceExhaustedError(
        absl::StrCat(waiters_.size(), " calls wait for keys of this epoch, which is the limit"));
  }
  const absl::Time deadline = now + std::clamp(wait.limit, absl::ZeroDuration(), limits_.max_wait);
  waiters_[wait.token] = {wait.prefix, wait.count, deadline};
  deadlines_.insert({deadline, wait.token});
  Prefix& prefix = prefixes_[wait.prefix];
  prefix.num_keys = static_cast<int>(entries.size());
  prefix.waiters.push_back(wait.token);
  return absl::OkStatus();
}

void KvStore::Cancel(WaitToken token) {
  if (waiters_.contains(token)) Remove(token);
}

void KvStore::Expire(absl::Time now, std::vector<Action>* done) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const WaitToken token = deadlines_.begin()->second;
    const Waiter& waiter = waiters_.at(token);
    done->emplace_back(WaitDone{token,
                                absl::DeadlineExceededError(absl::StrCat(
                                    prefixes_.at(waiter.prefix).num_keys, " of ", waiter.count,
                                    " keys are there under \"", waiter.prefix, "\"")),
                                {}});
    Remove(token);
  }
}

void KvStore::End(const absl::Status& status, std::vector<Action>* done) {
  for (const auto& [token, waiter] : waiters_) done->emplace_back(WaitDone{token, status, {}});
  waiters_.clear();
  deadlines_.clear();
  prefixes_.clear();
  keys_.clear();
  bytes_ = 0;
}

const std::string* KvStore::Find(const std::string& key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : &found->second;
}

KeyValues KvStore::Collect(const std::string& prefix) const {
  KeyValues entries;
  for (auto it = keys_.lower_bound(prefix); it != keys_.end(); ++it) {
    if (!absl::StartsWith(it->first, prefix)) break;
    entries.push_back(*it);
  }
  return entries;
}

void KvStore::Remove(WaitToken token) {
  const auto entry = prefixes_.find(waiters_.at(token).prefix);
  auto& waiters = entry->second.waiters;
  waiters.erase(std::find(waiters.begin(), waiters.end(), token));
  if (waiters.empty()) prefixes_.erase(entry);
  deadlines_.erase({waiters_.at(token).deadline, token});
  waiters_.erase(token);
}

}  // namespace muster
