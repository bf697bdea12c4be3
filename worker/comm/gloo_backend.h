// One gloo group of libtorch, with what it lacks: a constructor that can be woken, and an abort.
// The only file that sees gloo's headers is gloo_backend.cc, and it calls exported functions only:
// the headers are older than the gloo inside the library, so no field may be read. Thread-safety:
// Poke and SignalPairs from any thread; the rest from one at a time.
#pragma once

#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster {

class GlooBackend {
 public:
  struct Options {
    std::string host;  // numeric; the address to bind and to tell the peers
    int rank = 0, size = 1;
    absl::Duration operation_limit;
  };
  // Opens the listening socket. UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<GlooBackend>> Open(const Options& options);
  // Blocks while operations are pending: call it where that does not matter.
  ~GlooBackend();

  // Exchanges addresses through `store` and connects to all members. Blocks for as long as one is
  // missing: only a thread that may wait calls it.
  absl::Status Connect(const c10::intrusive_ptr<c10d::Store>& store);
  // Ends a Connect that waits, as listener, for a peer that will not come.
  void Poke();

  // After Connect, by one thread at a time.
  c10d::Backend& ops();
  // Of the operations that are issued from now on.
  void SetLimit(absl::Duration limit);
  // Fails the pending operations, as gloo itself does when one times out. Most end at once, a few
  // (whose payload is half sent) only at their limit. May block for some 10 ms.
  void SignalPairs();

 private:
  struct Impl;
  explicit GlooBackend(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace muster
