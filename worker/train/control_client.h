// The trainer's end of the socket to its agent: a thread reads, a thread writes, callers never wait
// for the agent. End of file means that the agent is gone; the process then ends at once, since
// nobody could stop it any more; one that was told to leave has a second to do so by itself.
// Thread-safe.
#pragma once

#include <time.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/control/messages.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "worker/comm/rendezvous_store.h"
#include "worker/train/line_writer.h"
#include "worker/train/trainer_host.h"

namespace muster {

class ControlClient final : public TrainerHost {
 public:
  // Takes the socket over. `on_end_of_file` ends the process in the daemon; tests note it.
  ControlClient(int fd, std::function<void()> on_end_of_file);
  ~ControlClient() override;

  void Send(TrainerToAgent message) override;
  void NoteProgress(int64_t epoch, int64_t iteration) override;
  absl::Status SendTracePiece(TracePieceMessage piece, absl::Duration limit) override;
  std::vector<Directive> TakeDirectives() override;
  std::vector<Directive> WaitForDirectives(int64_t epoch) override;
  void WatchOperations(std::function<std::vector<OpArrival>()> newest) override;
  bool ExitSignalReceived() override;
  // Probes are answered with the CPU time of the calling thread from now on. It must outlive this.
  void WatchThisThread();
  // Called by the signal handler's watcher.
  void NoteExitSignal();

  // Blocks until the next assignment; nullopt once a shutdown came. Messages of other epochs are
  // dropped from now on.
  std::optional<AssignMessage> WaitForAssignment();
  // An assignment waits, or the shutdown.
  bool IsWanted();
  // The world's unique ID of `epoch`. ABORTED when the epoch is over, DEADLINE_EXCEEDED after
  // `limit`.
  absl::StatusOr<std::string> WaitForUniqueId(int64_t epoch, absl::Duration limit);
  // Keys of one epoch; ends with ABORTED as soon as the epoch does.
  std::unique_ptr<RendezvousStore> StoreOf(int64_t epoch);
  // Called from the reader's thread when `epoch` is aborted (at once if it is over already), until
  // replaced. A null callback ends that.
  void OnAbort(int64_t epoch, std::function<void(const std::string& reason)> callback);

  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> StoreCall(
      StoreRequestMessage request, absl::Duration limit);

  // Waits until everything sent has left, at most `limit`. For the last messages before leaving.
  void Flush(absl::Duration limit);

 private:
  // Sends `message`, whose request is set here, and waits for its reply.
  template <typename Message>
  absl::StatusOr<StoreReplyMessage> Request(Message message, absl::Duration limit,
                                            const std::string& what);
  void ReadLoop();
  void Handle(AgentToTrainer message);
  void EndEpoch(const std::string& reason);
  void Answer(const ProbeMessage& probe);

  const int fd_;
  const std::function<void()> on_end_of_file_;
  LineWriter writer_;
  Mutex mu_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<AssignMessage> assignments_ ABSL_GUARDED_BY(mu_);
  std::string job_id_ ABSL_GUARDED_BY(mu_);
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = -1;  // of the newest assignment handed out or queued
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
  std::string abort_reason_ ABSL_GUARDED_BY(mu_);
  std::string unique_id_ ABSL_GUARDED_BY(mu_);
  std::vector<Directive> directives_ ABSL_GUARDED_BY(mu_);
  std::function<void(const std::string&)> on_abort_ ABSL_GUARDED_BY(mu_);
  int64_t next_request_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<int64_t, std::optional<StoreReplyMessage>> pending_ ABSL_GUARDED_BY(mu_);
  std::string phase_ ABSL_GUARDED_BY(mu_);  // the last one sent
  std::optional<clockid_t> thread_clock_ ABSL_GUARDED_BY(mu_);
  Mutex watch_mu_;  // held while `newest_operations_` is called
  std::function<std::vector<OpArrival>()> newest_operations_ ABSL_GUARDED_BY(watch_mu_);
  std::atomic<int64_t> iteration_{0};
  std::atomic<bool> exit_signal_{false};
  RealClock clock_;
  absl::Duration next_progress_;  // of the training thread
  std::thread reader_;
};

}  // namespace muster
