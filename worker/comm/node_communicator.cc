#include "worker/comm/node_communicator.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "worker/comm/ready_work.h"
#include "worker/comm/self_communicator.h"
#include "worker/comm/shm_communicator.h"
#include "worker/comm/shm_links.h"
#include "worker/comm/tensor_checks.h"

namespace muster {
namespace {

// Tells the peers, when the last user has gone, that this rank has.
struct Connection {
  explicit Connection(std::shared_ptr<ShmLinks> l) : links(std::move(l)) {}
  ~Connection() { links->Close(); }
  const std::shared_ptr<ShmLinks> links;
};

// A forming world, then what its groups are made of.
class NodeWorld : public std::enable_shared_from_this<NodeWorld> {
 public:
  explicit NodeWorld(NodeOptions options)
      : options_(std::move(options)), state_(std::make_shared<AbortState>()) {
    options_.gloo.state = state_;
    std::vector<int> all(options_.gloo.size);
    std::iota(all.begin(), all.end(), 0);
    ranks_ = std::move(all);
  }

  const std::vector<int>& ranks() const { return ranks_; }
  AbortState& state() { return *state_; }

  void StartForming() {
    std::thread([self = shared_from_this()]() mutable {
      std::shared_ptr<ShmLinks> links;
      if (absl::Status status = self->Form(&links); !status.ok()) {
        self->state_->Fail(
            Annotate(status, absl::StrCat("forming group ", self->options_.gloo.name, " (rank ",
                                          self->options_.gloo.rank, ")")));
        if (links != nullptr) links->Close();
        return;
      }
      std::weak_ptr<ShmEngine> engine = self->engine_;
      self.reset();
      if (links == nullptr) return;
      links->Watch([&engine](int place) {
        if (const auto alive = engine.lock()) alive->PeerGone(place);
      });
    }).detach();
  }

  absl::Status WaitFormed() {
    absl::Status status;
    {
      MutexLock lock(&state_->mu);
      status = state_->Wait(&formed_changed_, AbortState::SteadyNow() + options_.gloo.form_limit,
                            [&] { return formed_; });
    }
    if (!absl::IsDeadlineExceeded(status)) return status;
    state_->Fail(absl::DeadlineExceededError(absl::StrCat(
        "forming group ", options_.gloo.name, " of ranks ", absl::StrJoin(ranks_, ","),
        ": not all were there after ", absl::FormatDuration(options_.gloo.form_limit))));
    return state_->failure();
  }

  // After WaitFormed. The world's own communicator of either kind.
  CommunicatorPtr World() {
    if (gloo_world_ != nullptr) return gloo_world_;
    return MakeShm(options_.gloo.name, ranks_, options_.gloo.rank);
  }
  bool ShareMemory(const std::vector<int>& global) const {
    return engine_ != nullptr &&
           std::all_of(global.begin(), global.end(), [&](int rank) { return places_[rank] >= 0; });
  }
  CommunicatorPtr MakeShm(std::string name, std::vector<int> global, int rank) {
    return MakeShmCommunicator(std::move(name), std::move(global), rank, places_, engine_);
  }

 private:
  absl::Status Form(std::shared_ptr<ShmLinks>* links);
  absl::StatusOr<std::vector<ShmAddress>> ExchangeAddresses(const ShmAddress& mine);

  NodeOptions options_;
  const std::shared_ptr<AbortState> state_;
  std::vector<int> ranks_;

  // Guarded by state_->mu; what follows is set before and constant then.
  bool formed_ = false;
  CondVar formed_changed_;
  std::vector<int> places_;  // by global rank: its place on this node, or -1
  std::shared_ptr<ShmEngine> engine_;
  CommunicatorPtr gloo_world_;  // null: all ranks share memory
};

absl::StatusOr<std::vector<ShmAddress>> NodeWorld::ExchangeAddresses(const ShmAddress& mine) {
  const GlooOptions& gloo = options_.gloo;
  const std::string prefix = absl::StrCat("node/", gloo.name, "/");
  // Padded: keys come back sorted as text.
  const auto key = [&](int rank) { return absl::StrCat(prefix, absl::Dec(rank, absl::kZeroPad8)); };
  RETURN_IF_ERROR(gloo.store->Set(key(gloo.rank), mine.Encode()));
  ASSIGN_OR_RETURN(const auto found, gloo.store->WaitPrefix(prefix, gloo.size, gloo.form_limit));
  std::vector<ShmAddress> addresses;
  for (const auto& [name, text] : found) {
    if (name != key(static_cast<int>(addresses.size()))) {
      return absl::DataLossError(absl::StrCat("unexpected rendezvous key ", name));
    }
    ASSIGN_OR_RETURN(ShmAddress address, ShmAddress::Decode(text));
    addresses.push_back(std::move(address));
  }
  return addresses;
}

absl::Status NodeWorld::Form(std::shared_ptr<ShmLinks>* links) {
  const int rank = options_.gloo.rank, size = options_.gloo.size;
  ShmAddress mine;
  auto opened = ShmLinks::Open();
  if (opened.ok()) {
    *links = *std::move(opened);
    mine = (*links)->address();
    if (!options_.node.empty()) absl::StrAppend(&mine.node, "/", options_.node);
  } else {
    MUSTER_LOG(kWarning) << "ranks of this node will not share memory, but use gloo: "
                         << opened.status().message();
  }
  ASSIGN_OR_RETURN(const std::vector<ShmAddress> addresses, ExchangeAddresses(mine));
  std::vector<ShmAddress> on_node;
  places_.assign(size, -1);
  for (int other = 0; other < size; ++other) {
    if (mine.node.empty() || addresses[other].node != mine.node) continue;
    places_[other] = static_cast<int>(on_node.size());
    on_node.push_back(addresses[other]);
  }
  const int num_here = static_cast<int>(on_node.size());
  if (num_here > kMaxShmRanks) {
    MUSTER_LOG(kWarning) << "node has " << num_here << " ranks of this job, above " << kMaxShmRanks
                         << ": they do not share memory, but use gloo";
  }
  if (num_here > 1 && num_here <= kMaxShmRanks) {
    // An abort frees the meeting.
    const int64_t listener = state_->AddListener([l = *links] { l->Close(); });
    auto arenas = (*links)->Meet(on_node, places_[rank], options_.gloo.form_limit);
    state_->RemoveListener(listener);
    RETURN_IF_ERROR(arenas.status());
    engine_ = ShmEngine::Make(
        {.node_rank = places_[rank],
         .arenas = *std::move(arenas),
         .state = state_,
         .operation_limit = options_.gloo.operation_limit,
         .crowded = num_here > static_cast<int>(std::thread::hardware_concurrency()),
         .on_failure = [l = *links] { l->Close(); },
         .connection = std::make_shared<Connection>(*links)});
  } else {
    *links = nullptr;
  }
  if (engine_ == nullptr || num_here < size) {
    MUSTER_LOG(kInfo) << "groups that span nodes use gloo; on this node share memory ranks="
                      << (engine_ == nullptr ? 0 : num_here) << " of=" << size;
    ASSIGN_OR_RETURN(gloo_world_, StartGlooWorld(options_.gloo));
  }
  MutexLock lock(&state_->mu);
  formed_ = true;
  formed_changed_.NotifyAll();
  return absl::OkStatus();
}

// The world, and groups on gloo: both must choose anew at each split.
class NodeCommunicator final : public Communicator {
 public:
  // `inner` may be null until the world has formed.
  NodeCommunicator(std::shared_ptr<NodeWorld> world, std::string name, std::vector<int> ranks,
                   int rank, CommunicatorPtr inner)
      : world_(std::move(world)),
        name_(std::move(name)),
        ranks_(std::move(ranks)),
        rank_(rank),
        inner_(std::move(inner)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  const std::string& name() const override { return name_; }
  const std::vector<int>& ranks() const override { return ranks_; }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    return Run([&](Communicator& c) { return c.AllReduce(std::move(tensor), op); });
  }
  WorkPtr ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return Run(
        [&](Communicator& c) { return c.ReduceScatter(std::move(output), std::move(input), op); });
  }
  WorkPtr AllGather(at::Tensor output, at::Tensor input) override {
    return Run([&](Communicator& c) { return c.AllGather(std::move(output), std::move(input)); });
  }
  WorkPtr AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> output_splits,
                   std::vector<int64_t> input_splits) override {
    return Run([&](Communicator& c) {
      return c.AllToAll(std::move(output), std::move(input), std::move(output_splits),
                        std::move(input_splits));
    });
  }
  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    return Run([&](Communicator& c) { return c.Broadcast(std::move(tensor), root); });
  }
  WorkPtr SendRecv(std::vector<P2POp> batch) override {
    return Run([&](Communicator& c) { return c.SendRecv(std::move(batch)); });
  }
  WorkPtr Barrier() override {
    return Run([](Communicator& c) { return c.Barrier(); });
  }

  absl::Status OpenChannels() override {
    ASSIGN_OR_RETURN(Communicator* const inner, Inner());
    return inner->OpenChannels();
  }

  absl::StatusOr<CommunicatorPtr> Split(std::string name, std::vector<int> members) override {
    ASSIGN_OR_RETURN(Communicator* const inner, Inner());
    const int index = IndexOf(members, rank());
    std::vector<int> global;
    const bool good = index >= 0 && CheckMembers(name, members, size()).ok();
    for (size_t i = 0; good && i < members.size(); ++i) global.push_back(ranks_[members[i]]);
    if (good && global.size() > 1 && world_->ShareMemory(global)) {
      RETURN_IF_ERROR(world_->state().failure());
      return world_->MakeShm(std::move(name), std::move(global), index);
    }
    ASSIGN_OR_RETURN(CommunicatorPtr group, inner->Split(name, std::move(members)));
    if (group == nullptr || group->size() == 1) return group;
    return CommunicatorPtr(std::make_shared<NodeCommunicator>(
        world_, std::move(name), std::move(global), index, std::move(group)));
  }

  void Abort(const std::string& reason) override {
    world_->state().Fail(absl::AbortedError(reason));
  }

  // Never waits for the forming.
  std::string Describe() override {
    const CommunicatorPtr inner = Known();
    if (inner != nullptr) return inner->Describe();
    return absl::StrCat("group ", name_, " is forming\n");
  }

  void Observe(OpObserver* observer) override {
    const absl::StatusOr<Communicator*> inner = Inner();
    if (inner.ok()) (*inner)->Observe(observer);
  }

 private:
  CommunicatorPtr Known() {
    MutexLock lock(&mu_);
    return inner_;
  }
  absl::StatusOr<Communicator*> Inner() {
    if (Communicator* const inner = known_.load()) return inner;
    RETURN_IF_ERROR(world_->WaitFormed());
    MutexLock lock(&mu_);
    if (inner_ == nullptr) inner_ = world_->World();
    known_ = inner_.get();
    return inner_.get();
  }
  template <class Call>
  WorkPtr Run(Call call) {
    const absl::StatusOr<Communicator*> inner = Inner();
    if (!inner.ok()) return MakeReadyWork(inner.status());
    return call(**inner);
  }

  const std::shared_ptr<NodeWorld> world_;
  const std::string name_;
  const std::vector<int> ranks_;
  const int rank_;
  std::atomic<Communicator*> known_{nullptr};
  Mutex mu_;
  CommunicatorPtr inner_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<CommunicatorPtr> Make(const NodeOptions& options, bool wait) {
  const GlooOptions& gloo = options.gloo;
  const bool alone = gloo.size == 1 && gloo.rank == 0;
  const bool valid = gloo.rank >= 0 && gloo.rank < gloo.size && gloo.store != nullptr;
  // Gloo says what is wrong with the options.
  if (!options.shared_memory || alone || !valid) {
    return wait ? FormGlooWorld(gloo) : StartGlooWorld(gloo);
  }
  auto world = std::make_shared<NodeWorld>(options);
  world->StartForming();
  if (wait) RETURN_IF_ERROR(world->WaitFormed());
  return CommunicatorPtr(
      std::make_shared<NodeCommunicator>(world, gloo.name, world->ranks(), gloo.rank, nullptr));
}

}  // namespace

absl::StatusOr<CommunicatorPtr> StartNodeWorld(const NodeOptions& options) {
  return Make(options, /*wait=*/false);
}

absl::StatusOr<CommunicatorPtr> FormNodeWorld(const NodeOptions& options) {
  return Make(options, /*wait=*/true);
}

}  // namespace muster
