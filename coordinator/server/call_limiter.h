// Counts the calls of each client and gives them turns at the engine. Pure; not thread-safe.
//
// A turn is one place in the engine's queue. A client holds at most max_turns_per_client of them;
// what it asks for beyond stands in its own queue, first in, first out, and moves up when one of
// its turns ends. So a client that sends as fast as it can makes its own requests wait, not
// others'.
//
// Invariants: turns <= max_turns_per_client; a client has queued work only while it holds all its
// turns; clients without calls, turns and work are forgotten.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/server/limits.h"

namespace muster {

template <typename Work>
class CallLimiter {
 public:
  explicit CallLimiter(const ServerLimits& limits) : limits_(limits) {}

  // Counts a call. RESOURCE_EXHAUSTED names the limit; nothing is counted then.
  absl::Status Begin(const std::string& client, bool may_wait) {
    if (calls_ >= limits_.max_calls) {
      return Exhausted("calls in progress of all clients", calls_, limits_.max_calls);
    }
    const auto found = clients_.find(client);
    const Client seen = found == clients_.end()
                            ? Client{}
                            : Client{.calls = found->second.calls, .waits = found->second.waits};
    if (seen.calls >= limits_.max_calls_per_client) {
      return Exhausted("calls in progress of this client", seen.calls,
                       limits_.max_calls_per_client);
    }
    if (may_wait && seen.waits >= limits_.max_waits_per_client) {
      return Exhausted("waiting calls of this client", seen.waits, limits_.max_waits_per_client);
    }
    Client& counted = clients_[client];
    ++calls_;
    ++counted.calls;
    if (may_wait) ++counted.waits;
    return absl::OkStatus();
  }
  // Precondition: of a call that was begun.
  void End(const std::string& client, bool may_wait) {
    Client& counted = clients_.at(client);
    --calls_;
    --counted.calls;
    if (may_wait) --counted.waits;
    ForgetIfIdle(client);
  }

  // `work` back when it may go on now: it holds a turn then. Else it is kept, and comes out of an
  // EndTurn of the same client.
  std::optional<Work> TakeTurn(const std::string& client, Work work) {
    Client& asking = clients_[client];
    if (asking.turns >= limits_.max_turns_per_client) {
      asking.queued.push_back(std::move(work));
      ++queued_;
      return std::nullopt;
    }
    ++asking.turns;
    return work;
  }
  // The client's next work, if any: the turn is its now.
  std::optional<Work> EndTurn(const std::string& client) {
    Client& ending = clients_.at(client);
    if (ending.queued.empty()) {
      --ending.turns;
      ForgetIfIdle(client);
      return std::nullopt;
    }
    Work next = std::move(ending.queued.front());
    ending.queued.pop_front();
    --queued_;
    return next;
  }

  int calls() const { return calls_; }
  int queued() const { return queued_; }
  size_t num_clients() const { return clients_.size(); }

 private:
  struct Client {
    int calls = 0, waits = 0, turns = 0;
    std::list<Work> queued;
  };

  static absl::Status Exhausted(absl::string_view what, int value, int limit) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", value, " of at most ", limit,
                                                     "; wait for answers before asking for more"));
  }
  void ForgetIfIdle(const std::string& client) {
    const auto found = clients_.find(client);
    const Client& idle = found->second;
    if (idle.calls == 0 && idle.turns == 0 && idle.queued.empty()) clients_.erase(found);
  }

  const ServerLimits limits_;
  std::map<std::string, Client> clients_;
  int calls_ = 0, queued_ = 0;
};

}  // namespace muster
