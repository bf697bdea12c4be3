// Helpers of the tests of context parallelism: the groups of ranks as threads, and a communicator
// that writes down what is posted and waited for among the attention kernels that run.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/model/logged_work.h"
#include "worker/model/cp_attention.h"
#include "worker/model/gpt.h"

namespace muster {

// A form of communication, and how the cp group is divided for it.
struct ContextForm {
  const char* name;
  CpCommType type;
  int a2a_size = 1;  // of a2a+p2p: the lower level
};
inline const std::vector<ContextForm>& ContextForms(int cp) {
  static const std::vector<ContextForm> two = {{"p2p", CpCommType::kP2p},
                                               {"all_gather", CpCommType::kAllGather},
                                               {"a2a", CpCommType::kA2a},
                                               {"a2a_p2p_2x1", CpCommType::kA2aP2p, 2},
                                               {"a2a_p2p_1x2", CpCommType::kA2aP2p, 1}};
  static const std::vector<ContextForm> four = {{"p2p", CpCommType::kP2p},
                                                {"all_gather", CpCommType::kAllGather},
                                                {"a2a", CpCommType::kA2a},
                                                {"a2a_p2p_2x2", CpCommType::kA2aP2p, 2}};
  return cp == 2 ? two : four;
}

// The cp group's levels: a2a over neighbours, p2p over what is left. Splits `cp`; keep `owned`.
struct ContextGroups {
  CommunicatorPtr a2a, p2p;

  ContextGroups(Communicator& cp, int a2a_size) {
    const int size = cp.size();
    for (int first = 0; first < size; first += a2a_size) {
      std::vector<int> members;
      for (int i = 0; i < a2a_size; ++i) members.push_back(first + i);
      const auto group = *cp.Split("hcp_0", members);
      if (group != nullptr) a2a = group;
    }
    for (int first = 0; first < a2a_size; ++first) {
      std::vector<int> members;
      for (int i = first; i < size; i += a2a_size) members.push_back(i);
      const auto group = *cp.Split("hcp_1", members);
      if (group != nullptr) p2p = group;
    }
  }
  ContextParallel Place(Communicator& cp) const {
    const auto peers = [](const CommunicatorPtr& group) {
      return group->size() == 1 ? nullptr : group.get();
    };
    return {
        .comm = &cp, .rank = cp.rank(), .size = cp.size(), .a2a = peers(a2a), .p2p = peers(p2p)};
  }
};

// Passes everything on, for those who look at exchanges between two ranks.
class PassingCommunicator : public Communicator {
 public:
  explicit PassingCommunicator(Communicator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& name() const override { return inner_.name(); }
  const std::vector<int>& ranks() const override { return inner_.ranks(); }
  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    return inner_.AllReduce(tensor, op);
  }
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return inner_.ReduceScatter(output, input, op);
  }
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    return inner_.AllGather(output, input);
  }
  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override {
    return inner_.AllToAll(output, input, std::move(output_splits), std::move(input_splits));
  }
  WorkPtr Broadcast(at::Tensor tensor, int root) override { return inner_.Broadcast(tensor, root); }
  WorkPtr SendRecv(std::vector<P2POp> batch) override { return inner_.SendRecv(std::move(batch)); }
  WorkPtr Barrier() override { return inner_.Barrier(); }
  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    return inner_.Split(std::move(name), std::move(members));
  }
  void Abort(const std::string& reason) override { inner_.Abort(reason); }
  std::string Describe() override { return inner_.Describe(); }

 protected:
  Communicator& inner_;
};

// Writes down the exchanges of a group, and how much is sent.
class ExchangeRecorder final : public PassingCommunicator {
 public:
  using PassingCommunicator::PassingCommunicator;
  // "post 96", "wait 96" (bytes sent), and whatever a test adds.
  std::vector<std::string>& events() { return events_; }
  std::vector<std::string> TakeEvents() { return std::exchange(events_, {}); }
  struct Traffic {
    int64_t messages = 0, bytes = 0;
  };
  Traffic TakeTraffic() { return std::exchange(traffic_, {}); }

  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    int64_t bytes = 0;
    for (const P2POp& op : batch) {
      if (op.kind != P2POp::Kind::kSend) continue;
      bytes += static_cast<int64_t>(op.tensor.nbytes());
      ++traffic_.messages;
    }
    traffic_.bytes += bytes;
    events_.push_back(absl::StrCat("post ", bytes));
    return std::make_shared<LoggedWork>(events_, absl::StrCat("wait ", bytes),
                                        inner_.SendRecv(std::move(batch)));
  }

 private:
  std::vector<std::string> events_;
  Traffic traffic_;
};

// Aborts its world instead of the exchange of that number, from 1 on.
class FailingCommunicator final : public PassingCommunicator {
 public:
  FailingCommunicator(Communicator& inner, int64_t fails_at)
      : PassingCommunicator(inner), fails_at_(fails_at) {}
  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    if (++exchanges_ == fails_at_) inner_.Abort("pulled the plug");
    return inner_.SendRecv(std::move(batch));
  }

 private:
  const int64_t fails_at_;
  int64_t exchanges_ = 0;
};

// While it lives, every attention kernel that this thread runs is an event of the list:
// "attend 8 x 4" (queries x keys), "attend backward 8 x 4".
class KernelEvents {
 public:
  explicit KernelEvents(std::vector<std::string>& events) {
    List() = &events;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&KernelEvents::OnStart).needsInputs(true));
  }
  ~KernelEvents() {
    at::removeCallback(handle_);
    List() = nullptr;
  }
  KernelEvents(const KernelEvents&) = delete;
  KernelEvents& operator=(const KernelEvents&) = delete;

 private:
  static std::vector<std::string>*& List() {
    thread_local std::vector<std::string>* list = nullptr;
    return list;
  }
  static std::unique_ptr<at::ObserverContext> OnStart(const at::RecordFunction& fn) {
    const std::string name = fn.name();
    const std::string kernel = "aten::_scaled_dot_product_flash_attention_for_cpu";
    if (name != kernel && name != kernel + "_backward") return nullptr;
    const bool backward = name != kernel;
    const auto rows = [&](size_t input) { return fn.inputs()[input].toTensor().size(2); };
    List()->push_back(backward ? absl::StrCat("attend backward ", rows(1), " x ", rows(2))
                               : absl::StrCat("attend ", rows(0), " x ", rows(1)));
    return nullptr;
  }
  at::CallbackHandle handle_;
};

}  // namespace muster
