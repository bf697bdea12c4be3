// Carries out one rank's operations in shared memory. Torch-free.
//
// There is no thread whose job that is while somebody waits: a waiting thread looks at all groups
// (one step of each queue at a time), and sleeps at the rank's bell when no step is possible. Start
// takes the first steps on the caller's thread. Only what is pending while nobody waits is done by
// the helper thread, so that communication overlaps with computation; idle, it sleeps.
//
// After a failure of the AbortState nothing touches an operation's memory any more once Wait has
// returned. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/runtime/mutex.h"
#include "worker/comm/abort_state.h"
#include "worker/comm/shm_group.h"

namespace muster {

class ShmEngine {
 public:
  struct Options {
    int node_rank = 0;                              // this rank's place on the node
    std::vector<std::shared_ptr<ShmArena>> arenas;  // by place
    std::shared_ptr<AbortState> state;
    absl::Duration operation_limit;
    // Sleep at once instead of looking a few more times: there are more ranks than cores.
    bool crowded = false;
    // A net: no ring is lost, but a thread that sleeps looks again after this all the same.
    absl::Duration longest_sleep = absl::Seconds(1);
    // Called when the state has failed, by any thread. Must not block.
    std::function<void()> on_failure;
    // Released with the engine: what tells the peers that this rank has gone.
    std::shared_ptr<void> connection;
  };
  // Whoever drops the last reference does not wait: what is still pending is finished first, on a
  // thread of its own.
  static std::shared_ptr<ShmEngine> Make(Options options);

  // The group of these global ranks in this order, made on first use. `node_ranks`: their places.
  ShmGroup* FindOrMake(const std::string& name, const std::vector<int>& ranks, int rank,
                       const std::vector<int>& node_ranks);

  // Sets deadline and sequence. The operation has a collective, or at least one transfer.
  void Start(ShmGroup* group, const ShmOpPtr& op);
  // Errors: the state's failure, which a passed limit or a dead peer becomes.
  absl::Status Wait(const ShmOpPtr& op);
  bool IsDone(const ShmOpPtr& op) const { return op->done.load() || failed_.load(); }
  std::string Describe(ShmGroup* group);

  // The process of this rank of the node has ended, or given up.
  void PeerGone(int node_rank);
  AbortState& state() { return *options_.state; }

 private:
  class Deleter;
  explicit ShmEngine(Options options);
  ~ShmEngine();

  ShmBell& bell() { return options_.arenas[options_.node_rank]->bell(); }
  // One step of each queue; completes what the failure requires. What it found is in the result.
  ShmPass Look(bool from_driver);
  ShmPass LookLocked(bool from_driver) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropAllLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Looks and sleeps by turns until `done()`.
  template <class Done>
  void Drive(Done done, int num_spins);
  void Help();
  void WakeHelper();
  void OnFailure();

  const Options options_;
  int64_t listener_ = 0;
  std::atomic<uint64_t> gone_{0};
  std::atomic<bool> failed_{false};
  std::atomic<int> num_pending_{0};
  std::atomic<int> num_drivers_{0};  // threads that are in Drive

  Mutex inbox_mu_;
  std::vector<ShmOpPtr> inbox_ ABSL_GUARDED_BY(inbox_mu_);

  Mutex mu_;  // guards the groups' insides; taken before inbox_mu_
  std::map<std::vector<int>, std::unique_ptr<ShmGroup>> groups_ ABSL_GUARDED_BY(mu_);
  std::vector<ShmGroup*> active_ ABSL_GUARDED_BY(mu_);

  Mutex helper_mu_;
  CondVar helper_changed_;
  bool helper_wanted_ ABSL_GUARDED_BY(helper_mu_) = false;
  bool stop_ ABSL_GUARDED_BY(helper_mu_) = false;
  std::thread helper_;
};

}  // namespace muster
