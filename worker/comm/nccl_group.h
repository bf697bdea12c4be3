// The state behind NcclCommunicator: one NCCL communicator with its stream (NcclGroup), and all of
// a world with their watcher thread (NcclFamily). Thread-safe. Locks are taken in this order: a
// group's, then the family's AbortState's.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/abort_state.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_api.h"
#include "worker/comm/op_log.h"

namespace muster {

class NcclGroup;

class NcclFamily {
 public:
  struct Options {
    std::shared_ptr<NcclApi> api;
    absl::Duration form_limit, operation_limit, poll_interval;
  };
  explicit NcclFamily(Options options);
  ~NcclFamily();

  const Options& options() const { return options_; }
  NcclApi& api() const { return *options_.api; }
  AbortState& state() { return state_; }

  void Add(const std::shared_ptr<NcclGroup>& group);
  // The first cause wins. Frees who polls at once; the watcher then aborts the communicators.
  void Fail(const absl::Status& cause);
  // Where NCCL may write a communicator at any time until it is formed or aborted: lives as long as
  // the family.
  NcclComm* NewPlace();
  // The watcher sleeps while nothing runs.
  void NoteWork();
  // Polls `result` of a communicator (under its group's lock) until it is not kInProgress.
  // `lock_mu`: released while it sleeps. Errors: the failure, UNAVAILABLE, DEADLINE_EXCEEDED.
  absl::Status Settle(NcclResult result, NcclComm comm, absl::Duration limit, Mutex* lock_mu)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_mu);

 private:
  void Watch();

  const Options options_;
  AbortState state_;
  CondVar changed_;  // with state_.mu
  bool stopping_ ABSL_GUARDED_BY(state_.mu) = false;
  bool has_work_ ABSL_GUARDED_BY(state_.mu) = false;
  std::vector<std::unique_ptr<NcclComm>> places_ ABSL_GUARDED_BY(state_.mu);
  std::vector<std::shared_ptr<NcclGroup>> groups_ ABSL_GUARDED_BY(state_.mu);
  std::thread watcher_;  // started last
};

class NcclGroup {
 public:
  using Launch = std::function<NcclResult(NcclApi&, NcclComm, CudaStream)>;

  NcclGroup(std::string name, std::vector<int> ranks, int rank, NcclFamily* family);
  ~NcclGroup();

  // Joins the world: blocks until all its ranks have.
  absl::Status Join(const NcclId& id);
  // The caller's part in the split of this group: `child` gets the new communicator; null: none.
  absl::Status Split(int color, int key, NcclGroup* child);

  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }

  // Starts an operation on the group's stream. `tensors` stay alive until it is done or the stream
  // that they are used on waits for it.
  WorkPtr Start(const OpShape& shape, std::vector<at::Tensor> tensors, const Launch& launch,
                const std::shared_ptr<NcclGroup>& self, std::shared_ptr<NcclFamily> family,
                absl::Span<const OpTransfer> transfers = {});
  std::string Describe();
  void Observe(OpObserver* observer) { log_.Observe(observer); }
  bool observed() const { return log_.observed(); }
  void* token() const { return token_; }  // a byte on the device, for barriers

  // By the family's watcher. PollOnce returns whether operations are still running.
  absl::StatusOr<bool> PollOnce();
  void AbortComm();

 private:
  struct Running;
  class Handle;
  using RunningPtr = std::shared_ptr<Running>;

  absl::Status Prepare() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Adopt(NcclComm comm, const absl::Status& parent);
  absl::Status Launched(const RunningPtr& running, const Launch& launch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Wait(const RunningPtr& running);
  bool IsDone(const RunningPtr& running);
  absl::StatusOr<CudaEvent> TakeEvent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Explained(NcclResult result, const std::string& what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;
  NcclFamily* const family_;  // owns this
  OpLog log_;
  Mutex mu_;  // NCCL wants one call at a time on a communicator
  NcclComm comm_ ABSL_GUARDED_BY(mu_) = nullptr;
  CudaStream stream_ ABSL_GUARDED_BY(mu_) = nullptr;
  void* token_ = nullptr;                                // set before the first operation
  CudaEvent begin_ ABSL_GUARDED_BY(mu_) = nullptr;       // "what the caller's stream holds so far"
  std::deque<RunningPtr> running_ ABSL_GUARDED_BY(mu_);  // in stream order
  std::vector<CudaEvent> spare_events_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
