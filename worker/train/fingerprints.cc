#include "worker/train/fingerprints.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/comm/op_log.h"

namespace muster {
namespace {

// Mixes 64 bits into a hash (the finaliser of MurmurHash3).
uint64_t Mix(uint64_t hash, uint64_t word) {
  hash ^= word;
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccdULL;
  hash ^= hash >> 33;
  hash *= 0xc4ceb9fe1a85ec53ULL;
  return hash ^ (hash >> 33);
}

uint64_t HashBytes(const char* bytes, size_t size) {
  uint64_t hash = size;
  while (size > 0) {
    uint64_t word = 0;
    const size_t part = size < sizeof(word) ? size : sizeof(word);
    std::memcpy(&word, bytes, part);
    hash = Mix(hash, word);
    bytes += part;
    size -= part;
  }
  return hash;
}

// Operations run in `inner`, after the log has seen what this rank gives.
class ListeningCommunicator final : public Communicator {
 public:
  ListeningCommunicator(CommunicatorPtr inner, FingerprintLog& log)
      : inner_(std::move(inner)), log_(log) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  const std::vector<int>& ranks() const override { return inner_->ranks(); }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    Gives("all_reduce", tensor);
    return inner_->AllReduce(std::move(tensor), op);
  }
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    Gives("reduce_scatter", input);
    return inner_->ReduceScatter(std::move(output), std::move(input), op);
  }
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    Gives("all_gather", input);
    return inner_->AllGather(std::move(output), std::move(input));
  }
  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override {
    Gives("all_to_all", input);
    return inner_->AllToAll(std::move(output), std::move(input), std::move(output_splits),
                            std::move(input_splits));
  }
  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    Gives("broadcast", root == rank() ? tensor : at::Tensor());
    return inner_->Broadcast(std::move(tensor), root);
  }
  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    // All that is sent was computed before anything of the batch comes.
    for (const bool sends : {true, false}) {
      for (const P2POp& op : batch) {
        if ((op.kind == P2POp::Kind::kSend) != sends) continue;
        const int from = sends ? rank() : op.peer, to = sends ? op.peer : rank();
        log_.Add(name(), ranks(), absl::StrCat("send ", from, ">", to, " channel ", op.channel),
                 sends ? op.tensor : at::Tensor());
      }
    }
    return inner_->SendRecv(std::move(batch));
  }
  absl::Status OpenChannels() override { return inner_->OpenChannels(); }
  WorkPtr Barrier() override { return inner_->Barrier(); }
  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    return inner_->Split(std::move(name), std::move(members));
  }
  void Abort(const std::string& reason) override { inner_->Abort(reason); }
  std::string Describe() override { return inner_->Describe(); }
  void Observe(OpObserver* observer) override { inner_->Observe(observer); }

 private:
  void Gives(const char* op, const at::Tensor& given) {
    if (size() > 1) log_.Add(name(), ranks(), op, given);
  }

  const CommunicatorPtr inner_;
  FingerprintLog& log_;
};

}  // namespace

uint64_t HashOf(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().cpu().contiguous();
  return HashBytes(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
}

void FingerprintLog::Add(const std::string& group, const std::vector<int>& ranks,
                         const std::string& op, const at::Tensor& given) {
  const uint64_t hash = given.defined() ? HashOf(given) : 0;
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const std::string members = absl::StrCat(group, " [", FormatRanks(sorted), "]");
  MutexLock lock(&mu_);
  const int64_t sequence = sequences_[{members, op}]++;
  entries_.push_back({sequence, members, op, hash, given.defined()});
}

void FingerprintLog::AddResult(const std::vector<double>& values) {
  const uint64_t hash =
      HashBytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  MutexLock lock(&mu_);
  entries_.push_back({0, "rank", kResultOp, hash, true});
}

std::vector<Fingerprint> FingerprintLog::Take() {
  MutexLock lock(&mu_);
  sequences_.clear();
  return std::exchange(entries_, {});
}

ListenToGroups::ListenToGroups(const ParallelContext& parallel, FingerprintLog& log) {
  for (Communicator* group : parallel.All()) {
    auto* const handle = dynamic_cast<RebindableCommunicator*>(group);
    if (handle == nullptr) continue;
    bound_before_.emplace_back(handle, handle->inner());
    handle->Bind(std::make_shared<ListeningCommunicator>(bound_before_.back().second, log));
  }
}

ListenToGroups::~ListenToGroups() {
  for (auto& [handle, inner] : bound_before_) handle->Bind(inner);
}

}  // namespace muster
