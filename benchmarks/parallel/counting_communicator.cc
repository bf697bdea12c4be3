#include "benchmarks/parallel/counting_communicator.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

class TimedWork final : public Work {
 public:
  TimedWork(WorkPtr inner, std::shared_ptr<TrafficCounter> counter)
      : inner_(std::move(inner)), counter_(std::move(counter)) {}
  absl::Status Wait() override {
    const auto start = std::chrono::steady_clock::now();
    absl::Status status = inner_->Wait();
    counter_->AddWait(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    return status;
  }
  bool IsDone() override { return inner_->IsDone(); }

 private:
  const WorkPtr inner_;
  const std::shared_ptr<TrafficCounter> counter_;
};

class CountingCommunicator final : public Communicator {
 public:
  CountingCommunicator(CommunicatorPtr inner, std::shared_ptr<TrafficCounter> counter)
      : inner_(std::move(inner)), counter_(std::move(counter)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  const std::vector<int>& ranks() const override { return inner_->ranks(); }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    Count("all_reduce", 2 * Share(tensor));
    return Timed(inner_->AllReduce(std::move(tensor), op));
  }
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    Count("reduce_scatter", Share(input));
    return Timed(inner_->ReduceScatter(std::move(output), std::move(input), op));
  }
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    Count("all_gather", Share(output));
    return Timed(inner_->AllGather(std::move(output), std::move(input)));
  }
  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override {
    // Rows that stay here are not sent.
    const int64_t rows = input.size(0);
    const double sent = input_splits.empty() || rows == 0
                            ? Share(input)
                            : static_cast<double>(input.nbytes()) *
                                  static_cast<double>(rows - input_splits[rank()]) /
                                  static_cast<double>(rows);
    Count("all_to_all", sent);
    return Timed(inner_->AllToAll(std::move(output), std::move(input), std::move(output_splits),
                                  std::move(input_splits)));
  }
  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    Count("broadcast", rank() == root ? static_cast<double>(tensor.nbytes()) : 0);
    return Timed(inner_->Broadcast(std::move(tensor), root));
  }
  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    for (const P2POp& op : batch) {
      if (op.kind == P2POp::Kind::kSend) Count("send", static_cast<double>(op.tensor.nbytes()));
    }
    return Timed(inner_->SendRecv(std::move(batch)));
  }
  absl::Status OpenChannels() override { return inner_->OpenChannels(); }
  WorkPtr Barrier() override { return Timed(inner_->Barrier()); }
  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    auto part = inner_->Split(std::move(name), std::move(members));
    if (!part.ok() || *part == nullptr) return part;
    return CountTraffic(*std::move(part), counter_);
  }
  void Abort(const std::string& reason) override { inner_->Abort(reason); }
  std::string Describe() override { return inner_->Describe(); }

 private:
  double Share(const at::Tensor& whole) const {
    return static_cast<double>(whole.nbytes()) * (size() - 1) / size();
  }
  void Count(const char* op, double bytes) {
    if (size() > 1) counter_->Add(name(), op, bytes);
  }
  WorkPtr Timed(WorkPtr work) {
    if (size() == 1) return work;
    return std::make_shared<TimedWork>(std::move(work), counter_);
  }

  const CommunicatorPtr inner_;
  const std::shared_ptr<TrafficCounter> counter_;
};

}  // namespace

void TrafficCounter::Add(const std::string& group, const char* op, double bytes) {
  const std::lock_guard<std::mutex> lock(mu_);
  Operations& operations = operations_[absl::StrCat(group, " ", op)];
  ++operations.count;
  operations.bytes += bytes;
}

void TrafficCounter::AddWait(double seconds) {
  const std::lock_guard<std::mutex> lock(mu_);
  wait_seconds_ += seconds;
}

void TrafficCounter::Clear() {
  const std::lock_guard<std::mutex> lock(mu_);
  operations_.clear();
  wait_seconds_ = 0;
}

std::map<std::string, TrafficCounter::Operations> TrafficCounter::operations() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return operations_;
}

double TrafficCounter::wait_seconds() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return wait_seconds_;
}

CommunicatorPtr CountTraffic(CommunicatorPtr inner, std::shared_ptr<TrafficCounter> counter) {
  return std::make_shared<CountingCommunicator>(std::move(inner), std::move(counter));
}

}  // namespace muster
