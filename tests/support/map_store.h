// RendezvousStores for tests: a map in this process, and the same map served over a socket pair to
// ranks in forked processes. Torch-free.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "worker/comm/rendezvous_store.h"

namespace muster {

using StoreEntries = std::vector<std::pair<std::string, std::string>>;

inline StoreEntries EntriesWithPrefix(const std::map<std::string, std::string>& values,
                                      const std::string& prefix) {
  StoreEntries found;
  for (auto it = values.lower_bound(prefix); it != values.end(); ++it) {
    if (!absl::StartsWith(it->first, prefix)) break;
    found.emplace_back(it->first, it->second);
  }
  return found;
}

// Counts its calls: a group must cost one Set and one WaitPrefix a rank.
class MapStore final : public RendezvousStore {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    std::lock_guard<std::mutex> lock(mu_);
    ++num_sets_;
    if (ended_) return absl::AbortedError("the epoch is over");
    values_[key] = value;
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<StoreEntries> WaitPrefix(const std::string& prefix, int count,
                                          absl::Duration limit) override {
    const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
    std::unique_lock<std::mutex> lock(mu_);
    ++num_waits_;
    for (;;) {
      if (ended_) return absl::AbortedError("the epoch is over");
      StoreEntries found = EntriesWithPrefix(values_, prefix);
      if (static_cast<int>(found.size()) >= count) return found;
      if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) {
        return absl::DeadlineExceededError(
            absl::StrCat(found.size(), " of ", count, " keys begin with ", prefix));
      }
    }
  }

  void EndEpoch() {
    std::lock_guard<std::mutex> lock(mu_);
    ended_ = true;
    changed_.notify_all();
  }
  int num_sets() {
    std::lock_guard<std::mutex> lock(mu_);
    return num_sets_;
  }
  int num_waits() {
    std::lock_guard<std::mutex> lock(mu_);
    return num_waits_;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  bool ended_ = false;
  int num_sets_ = 0, num_waits_ = 0;
};

// Messages of the served map: a list of strings in one packet.
namespace store_wire {

inline std::string Pack(const std::vector<std::string>& fields) {
  std::string packet;
  for (const std::string& field : fields) absl::StrAppend(&packet, field.size(), ":", field);
  return packet;
}

inline std::vector<std::string> Unpack(const std::string& packet) {
  std::vector<std::string> fields;
  for (size_t at = 0; at < packet.size();) {
    const size_t colon = packet.find(':', at);
    size_t size = 0;
    if (colon == std::string::npos || !absl::SimpleAtoi(packet.substr(at, colon - at), &size)) {
      return {};
    }
    fields.push_back(packet.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return fields;
}

// False at the end of the connection.
inline bool SendPacket(int fd, const std::string& packet) {
  return send(fd, packet.data(), packet.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(packet.size());
}
inline bool ReceivePacket(int fd, std::string* packet, int flags = 0) {
  packet->resize(1 << 17);
  const ssize_t size = recv(fd, packet->data(), packet->size(), flags);
  packet->resize(size > 0 ? size : 0);
  return size > 0;
}

}  // namespace store_wire

// A rank's end. One connection serves all epochs of the process; calls overlap. Make it after fork:
// it has a reader thread (which ends with the process).
class StoreConnection {
 public:
  explicit StoreConnection(int fd) : fd_(fd) {
    std::thread([this] { Read(); }).detach();
  }

  std::vector<std::string> Call(std::vector<std::string> request) {
    std::unique_lock<std::mutex> lock(mu_);
    const std::string id = absl::StrCat(next_id_++);
    request.insert(request.begin(), id);
    if (!store_wire::SendPacket(fd_, store_wire::Pack(request))) closed_ = true;
    changed_.wait(lock, [&] { return closed_ || replies_.count(id) > 0; });
    if (replies_.count(id) == 0) {
      return {absl::StrCat(static_cast<int>(absl::StatusCode::kAborted)), "the store is gone"};
    }
    std::vector<std::string> reply = std::move(replies_[id]);
    replies_.erase(id);
    return reply;
  }

 private:
  void Read() {
    std::string packet;
    while (store_wire::ReceivePacket(fd_, &packet)) {
      std::vector<std::string> reply = store_wire::Unpack(packet);
      std::lock_guard<std::mutex> lock(mu_);
      const std::string id = reply[0];
      reply.erase(reply.begin());
      replies_[id] = std::move(reply);
      changed_.notify_all();
    }
    std::lock_guard<std::mutex> lock(mu_);
    closed_ = true;
    changed_.notify_all();
  }

  const int fd_;
  std::mutex mu_;
  std::condition_variable changed_;
  int next_id_ = 0;
  bool closed_ = false;
  std::map<std::string, std::vector<std::string>> replies_;
};

class SocketStore final : public RendezvousStore {
 public:
  SocketStore(std::shared_ptr<StoreConnection> connection, int64_t epoch)
      : connection_(std::move(connection)), epoch_(epoch) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    return StatusOf(connection_->Call({absl::StrCat(epoch_), "set", key, value}));
  }
  absl::StatusOr<StoreEntries> WaitPrefix(const std::string& prefix, int count,
                                          absl::Duration limit) override {
    const auto reply = connection_->Call({absl::StrCat(epoch_), "wait", prefix, absl::StrCat(count),
                                          absl::StrCat(absl::ToInt64Milliseconds(limit))});
    if (absl::Status status = StatusOf(reply); !status.ok()) return status;
    StoreEntries found;
    for (size_t i = 2; i + 1 < reply.size(); i += 2) found.emplace_back(reply[i], reply[i + 1]);
    return found;
  }

 private:
  static absl::Status StatusOf(const std::vector<std::string>& reply) {
    int code = 0;
    if (reply.size() < 2 || !absl::SimpleAtoi(reply[0], &code)) {
      return absl::InternalError("bad reply of the test's store");
    }
    return absl::Status(static_cast<absl::StatusCode>(code), reply[1]);
  }

  const std::shared_ptr<StoreConnection> connection_;
  const int64_t epoch_;
};

// The other end, in the parent. Single-threaded: call Serve when a connection is readable.
class StoreServer {
 public:
  int64_t epoch() const { return epoch_; }

  // Answers every wait of the old epoch with ABORTED and forgets its keys.
  void StartEpoch(int64_t epoch) {
    epoch_ = epoch;
    values_.clear();
    for (const Wait& wait : waits_) Reply(wait, absl::AbortedError("the epoch is over"), {});
    waits_.clear();
  }

  // Handles what has arrived on `fd`; never blocks. False when the rank has closed it.
  bool Serve(int fd) {
    std::string packet;
    while (store_wire::ReceivePacket(fd, &packet, MSG_DONTWAIT)) Handle(fd, packet);
    return errno == EAGAIN || errno == EWOULDBLOCK;
  }
  void Forget(int fd) {
    std::erase_if(waits_, [fd](const Wait& wait) { return wait.fd == fd; });
  }
  // Ends waits whose limit has passed.
  void Tick() {
    const auto now = std::chrono::steady_clock::now();
    std::erase_if(waits_, [&](const Wait& wait) {
      if (now < wait.deadline) return false;
      const size_t found = EntriesWithPrefix(values_, wait.prefix).size();
      Reply(wait,
            absl::DeadlineExceededError(
                absl::StrCat(found, " of ", wait.count, " keys begin with ", wait.prefix)),
            {});
      return true;
    });
  }

 private:
  struct Wait {
    int fd = -1;
    std::string id, prefix;
    int count = 0;
    std::chrono::steady_clock::time_point deadline;
  };

  void Handle(int fd, const std::string& packet) {
    const std::vector<std::string> fields = store_wire::Unpack(packet);
    Wait wait{fd, fields[0]};
    if (fields[1] != absl::StrCat(epoch_)) {
      Reply(wait, absl::AbortedError("the epoch is over"), {});
      return;
    }
    if (fields[2] == "set") {
      values_[fields[3]] = fields[4];
      Reply(wait, absl::OkStatus(), {});
      std::erase_if(waits_, [&](const Wait& w) { return Answer(w); });
      return;
    }
    int64_t limit_ms = 0;
    wait.prefix = fields[3];
    (void)absl::SimpleAtoi(fields[4], &wait.count);
    (void)absl::SimpleAtoi(fields[5], &limit_ms);
    wait.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
    if (!Answer(wait)) waits_.push_back(wait);
  }

  bool Answer(const Wait& wait) {
    const StoreEntries found = EntriesWithPrefix(values_, wait.prefix);
    if (static_cast<int>(found.size()) < wait.count) return false;
    Reply(wait, absl::OkStatus(), found);
    return true;
  }

  static void Reply(const Wait& wait, const absl::Status& status, const StoreEntries& entries) {
    std::vector<std::string> fields{wait.id, absl::StrCat(static_cast<int>(status.code())),
                                    std::string(status.message())};
    for (const auto& [key, value] : entries) {
      fields.push_back(key);
      fields.push_back(value);
    }
    store_wire::SendPacket(wait.fd, store_wire::Pack(fields));
  }

  int64_t epoch_ = 0;
  std::map<std::string, std::string> values_;
  std::vector<Wait> waits_;
};

}  // namespace muster
