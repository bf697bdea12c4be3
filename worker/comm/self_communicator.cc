#include "worker/comm/self_communicator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/runtime/mutex.h"
#include "worker/comm/op_log.h"
#include "worker/comm/ready_work.h"
#include "worker/comm/self_mail.h"
#include "worker/comm/tensor_checks.h"

namespace muster {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator(std::string name, int global_rank)
      : name_(std::move(name)), ranks_{global_rank}, log_(name_, ranks_) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& name() const override { return name_; }
  const std::vector<int>& ranks() const override { return ranks_; }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp) override {
    return Run(ShapeOf("all_reduce", tensor), [&] { return CheckTensor("tensor", tensor); });
  }
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp) override {
    return Run(ShapeOf("reduce_scatter", input, output), [&] {
      RETURN_IF_ERROR(CheckSlices("input", input, "output", output, 1));
      CopyFlat(output, input);
      return absl::OkStatus();
    });
  }
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    return Run(ShapeOf("all_gather", input, output), [&] {
      RETURN_IF_ERROR(CheckSlices("output", output, "input", input, 1));
      CopyFlat(output, input);
      return absl::OkStatus();
    });
  }
  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override {
    return Run(ShapeOf("all_to_all", input, output), [&]() -> absl::Status {
      RETURN_IF_ERROR(CheckAllToAll(output, input));
      RETURN_IF_ERROR(SplitElements("output", output, output_splits, 1).status());
      RETURN_IF_ERROR(SplitElements("input", input, input_splits, 1).status());
      RETURN_IF_ERROR(CheckSlices("output", output, "input", input, 1));
      CopyFlat(output, input);
      return absl::OkStatus();
    });
  }
  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    return Run(ShapeOf("broadcast", tensor), [&] {
      RETURN_IF_ERROR(CheckTensor("tensor", tensor));
      return CheckRoot(root, 1);
    });
  }
  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    return Run({"send_recv"}, [&] {
      RETURN_IF_ERROR(CheckBatch(batch, 1));
      return mail_.Exchange(batch, 0);
    });
  }
  WorkPtr Barrier() override {
    return Run({"barrier"}, [] { return absl::OkStatus(); });
  }

  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    {
      MutexLock lock(&mu_);
      if (!failure_.ok()) return failure_;
    }
    if (members.empty()) return CommunicatorPtr();
    RETURN_IF_ERROR(CheckMembers(name, members, 1));
    return MakeSelfCommunicator(std::move(name), ranks_[0]);
  }

  void Abort(const std::string& reason) override {
    MutexLock lock(&mu_);
    if (failure_.ok()) failure_ = absl::AbortedError(reason);
  }

  std::string Describe() override { return log_.Describe(absl::Now()); }
  void Observe(OpObserver* observer) override { log_.Observe(observer); }

 private:
  template <class Body>
  WorkPtr Run(const OpShape& shape, Body body) {
    const int64_t sequence = log_.Start(shape, absl::Now());
    absl::Status status;
    {
      MutexLock lock(&mu_);
      if (failure_.ok()) {
        if (absl::Status error = body(); !error.ok()) {
          failure_ = Annotate(error, log_.Name(sequence));
        }
      }
      status = failure_;
    }
    log_.Finish(sequence, status, absl::Now());
    return MakeReadyWork(std::move(status));
  }

  const std::string name_;
  const std::vector<int> ranks_;
  OpLog log_;
  Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);  // the first one
  SelfMail mail_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

CommunicatorPtr MakeSelfCommunicator(std::string name, int global_rank) {
  return std::make_shared<SelfCommunicator>(std::move(name), global_rank);
}

}  // namespace muster
