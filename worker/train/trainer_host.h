// What the training loop tells and asks the outside: the agent's socket in the daemon, a recorder
// in tests. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/control/messages.h"

namespace muster {

class TrainerHost {
 public:
  virtual ~TrainerHost() = default;
  // Never blocks the caller.
  virtual void Send(TrainerToAgent message) = 0;
  // The step `iteration` of `epoch` is committed. Called by every rank after every step, from one
  // thread; costs a clock read.
  virtual void NoteProgress(int64_t epoch, int64_t iteration) {}
  // Brings a piece of a trace to the coordinator; blocks until it is there, at most a little longer
  // than `limit`. Not for the training thread. Errors: of the way, or the coordinator's.
  virtual absl::Status SendTracePiece(TracePieceMessage /*piece*/, absl::Duration /*limit*/) {
    return absl::UnimplementedError("nobody takes traces here");
  }
  // Directives that arrived since the last call, in any order, repeated or not.
  virtual std::vector<Directive> TakeDirectives() = 0;
  // Blocks until some have arrived. None: `epoch` is over, or nobody would send any.
  virtual std::vector<Directive> WaitForDirectives(int64_t /*epoch*/) { return {}; }
  // What this rank's groups are doing, for whoever asks whether it is alive: called from another
  // thread, until replaced. Null: nothing.
  virtual void WatchOperations(std::function<std::vector<OpArrival>()> /*newest*/) {}
  // True once a termination signal asked this process to checkpoint and exit.
  virtual bool ExitSignalReceived() = 0;
};

}  // namespace muster
