// One gloo group's life: forms on a thread of its own, starts operations in order once formed, and
// is freed by a retirement thread. No caller ever waits inside gloo: waits are on AbortState, fed
// by the futures' callbacks, so an abort frees them in microseconds however gloo is stuck.
//
//   unformed -1-> forming -2-> formed
//        \----3----\----3------\----> retired
//   1 the first operation or StartForming   2 all members connected; what was queued starts
//   3 the world failed (any group, any cause), or the last user went
//
// After a failure gloo may go on reading and writing the tensors of the operations that were
// pending until the retirement thread has ended them (NumLingeringGlooGroups): form the next epoch
// at once, but with fresh buffers. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/comm/abort_state.h"
#include "worker/comm/communicator.h"
#include "worker/comm/elastic_pool.h"
#include "worker/comm/gloo_backend.h"
#include "worker/comm/op_log.h"
#include "worker/comm/rendezvous_store.h"

namespace muster {

class GlooGroup;

// All groups of one world on this rank: they fail together.
class GlooFamily : public std::enable_shared_from_this<GlooFamily> {
 public:
  struct Options {
    int64_t epoch = 0;
    std::string host;
    std::shared_ptr<RendezvousStore> store;
    absl::Duration form_limit, operation_limit;
    bool check_collectives = false;
    std::shared_ptr<AbortState> state;  // null: its own
  };
  static std::shared_ptr<GlooFamily> Make(Options options);

  const Options& options() const { return options_; }
  AbortState& state() { return *state_; }
  const std::shared_ptr<AbortState>& shared_state() const { return state_; }

  // The group of these global ranks, in this order; made on first use. Equal groups are one.
  std::shared_ptr<GlooGroup> FindOrMake(const std::string& name, const std::vector<int>& ranks,
                                        int rank);
  // The first cause wins; it frees every waiter and retires every group, as does a failure of the
  // state that comes from elsewhere. Never blocks, takes no group's lock.
  void Fail(const absl::Status& cause) { state_->Fail(cause); }

 private:
  explicit GlooFamily(Options options);
  void RetireAll();

  const Options options_;
  const std::shared_ptr<AbortState> state_;
  Mutex mu_;
  std::map<std::vector<int>, std::shared_ptr<GlooGroup>> groups_ ABSL_GUARDED_BY(mu_);
};

class GlooGroup : public std::enable_shared_from_this<GlooGroup> {
 public:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
  struct Operation {
    OpShape shape;
    // Starts it; must not block. Holds the tensors.
    std::function<Works(c10d::Backend&)> issue;
    // Runs when all works are done, before the operation counts as done. May be empty.
    std::function<void()> finish;
    // Sends and receives have no future: a pool thread waits for them.
    bool point_to_point = false;
    std::vector<OpTransfer> transfers;  // of a send_recv, while observed
    // What all members must agree on, for check_collectives; empty: nothing (sends and receives).
    std::string signature;
    // Of an all-to-all, also: bytes for each member, which must agree pair by pair.
    std::vector<int64_t> sent, received;
  };

  GlooGroup(std::string name, std::vector<int> ranks, int rank,
            const std::shared_ptr<GlooFamily>& family);
  ~GlooGroup();

  const std::vector<int>& ranks() const { return ranks_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  void StartForming();
  // Errors: the world's failure; DEADLINE_EXCEEDED when the form limit passed (then the world has
  // failed).
  absl::Status WaitFormed();
  WorkPtr Start(Operation operation);
  std::string Describe();
  void Observe(OpObserver* observer) { log_.Observe(observer); }
  bool observed() const { return log_.observed(); }

  // By GlooFamily::Fail only.
  void Retire();

 private:
  struct Running;  // one operation
  class Handle;
  using RunningPtr = std::shared_ptr<Running>;

  void StartFormingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(issue_mu_);
  void Form();
  void DispatchLocked(const RunningPtr& running) ABSL_EXCLUSIVE_LOCKS_REQUIRED(issue_mu_);
  void CheckAndIssue();
  absl::Status CheckAgreement(const Running& running);
  void IssueLocked(const RunningPtr& running) ABSL_EXCLUSIVE_LOCKS_REQUIRED(issue_mu_);
  void Watch(const RunningPtr& running, const Works& works);
  void WorkEnded(const RunningPtr& running, const std::string& error);
  void End(const RunningPtr& running, bool done);
  absl::Status Wait(const RunningPtr& running);
  void Fail(const absl::Status& cause);
  absl::Status Named(const Running& running, absl::StatusCode code, const std::string& what);
  void WaitUntilDrained();

  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;  // in the group
  const GlooFamily::Options options_;
  const std::weak_ptr<GlooFamily> family_;
  const std::shared_ptr<AbortState> state_;
  OpLog log_;
  ElasticPool waiters_;

  // Held while operations are started, so that they start in order. Taken before state_->mu.
  Mutex issue_mu_;
  bool forming_ ABSL_GUARDED_BY(issue_mu_) = false;
  bool retired_ ABSL_GUARDED_BY(issue_mu_) = false;
  std::shared_ptr<GlooBackend> connecting_ ABSL_GUARDED_BY(issue_mu_);
  std::shared_ptr<GlooBackend> backend_ ABSL_GUARDED_BY(issue_mu_);  // set: formed
  std::deque<RunningPtr> queued_ ABSL_GUARDED_BY(issue_mu_);         // until formed
  std::deque<RunningPtr> unchecked_ ABSL_GUARDED_BY(issue_mu_);      // check_collectives only
  bool checking_ ABSL_GUARDED_BY(issue_mu_) = false;                 // a pool thread is at it

  // Guarded by state_->mu.
  bool formed_ = false;
  CondVar formed_changed_;
  std::set<RunningPtr> in_flight_;
  CondVar drained_;
};

// Groups that failed or were dropped and are not yet freed.
int NumLingeringGlooGroups();

}  // namespace muster
