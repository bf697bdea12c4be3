// A group's view of the rendezvous, as c10d wants it: one Set for the own address, ONE prefix fetch
// for all the others', and every further look-up from that answer. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/runtime/mutex.h"
#include "worker/comm/rendezvous_store.h"

namespace muster {

class GlooStore final : public c10d::Store {
 public:
  // `prefix` is the group's own; `size` keys under it make the group complete.
  GlooStore(std::shared_ptr<RendezvousStore> store, std::string prefix, int size,
            absl::Duration limit);

  // The first failure of the rendezvous: c10d turns it into an exception and loses its code.
  absl::Status status();

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override;
  int64_t getNumKeys() override;
  int64_t add(const std::string& key, int64_t value) override;  // not used by gloo: throws
  bool deleteKey(const std::string& key) override;              // likewise

 private:
  void FetchLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ThrowIfFailed(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<RendezvousStore> store_;
  const std::string prefix_;
  const int size_;
  const absl::Duration limit_;
  Mutex mu_;
  bool fetched_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
