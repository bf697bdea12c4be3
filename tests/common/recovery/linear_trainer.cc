#include "linear_trainer.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <optional>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/control/agreement.h"
#include "common/recovery/buddies.h"
#include "common/recovery/generations.h"
#include "common/recovery/restore_plan.h"

namespace muster {
namespace {

constexpr int kSamples = 8;  // of a batch, half a rank's

template <class T>
std::string Bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}
template <class T>
T FromBytes(const std::string& bytes) {
  MUSTER_CHECK(bytes.size() == sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

class Trainer {
 public:
  Trainer(const LinearJob& job, int rank, int socket, int memory)
      : job_(job), rank_(rank), socket_(socket) {
    void* at = mmap(nullptr, sizeof(LinearMemory), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    MUSTER_CHECK(at != MAP_FAILED);
    memory_ = static_cast<LinearMemory*>(at);
    const std::vector<int> buddies = BuddiesOf({"node0", "node1"});
    keeps_for_ =
        static_cast<int>(std::find(buddies.begin(), buddies.end(), rank) - buddies.begin());
  }

  void Run() {
    while (!(Recover() && Train())) {
    }
  }

 private:
  // ---- The hub.

  void Send(const std::string& message) {
    if (send(socket_, message.data(), message.size(), MSG_NOSIGNAL) < 0) _exit(4);
  }
  std::string Receive() {
    std::string message(1 << 16, '\0');
    const ssize_t size = recv(socket_, message.data(), message.size(), 0);
    if (size <= 0) _exit(5);  // the hub is gone, or nothing came for too long
    message.resize(size);
    return message;
  }

  using All = std::array<std::string, kLinearRanks>;
  // What every rank gave; nullopt: the epoch is over.
  std::optional<All> Exchange(const std::string& tag, const std::string& mine) {
    Send(absl::StrCat("E ", epoch_, " ", tag, "\n", mine));
    const std::string reply = Receive();
    if (reply[0] == 'B') return std::nullopt;
    MUSTER_CHECK(reply[0] == 'R');
    All all;
    size_t at = 1;
    for (std::string& one : all) {
      uint32_t size = 0;
      std::memcpy(&size, &reply[at], sizeof(size));
      one = reply.substr(at + sizeof(size), size);
      at += sizeof(size) + size;
    }
    return all;
  }

  void Point(const char* name, bool of_recovery = false) const {
    for (const Kill& kill : job_.kills) {
      if (kill.rank != rank_ || kill.point != name || (kill.epoch != 0) != of_recovery) continue;
      if (of_recovery ? kill.epoch != epoch_ : kill.step != step_ || restarted_) continue;
      ::kill(getpid(), SIGKILL);
    }
  }

  // ---- A new epoch: Exchange, Decide, Load, Fill, Start of the model.

  bool Recover() {
    Send("J\n");
    std::string assignment;
    do {
      assignment = Receive();
    } while (assignment[0] == 'B');  // of the epoch that this rank has left already
    MUSTER_CHECK(sscanf(assignment.c_str(), "A %ld", &epoch_) == 1);
    restarted_ = epoch_ > 1;
    Point("formed", true);

    std::vector<const LinearState*> places;
    const std::optional<All> texts = Exchange("offer", EncodeOffer(Offer(&places)));
    if (!texts.has_value()) return false;
    std::vector<MemberOffer> offers;
    for (const std::string& text : *texts) {
      absl::StatusOr<MemberOffer> offer = DecodeOffer(text);
      MUSTER_CHECK_MSG(offer.ok(), offer.status().message());
      offers.push_back(*std::move(offer));
    }
    const absl::StatusOr<RestoreDecision> decided = DecideRestore(offers);
    MUSTER_CHECK_MSG(decided.ok(), decided.status().message());
    const RestoreDecision& decision = *decided;
    const RestoreDecision::Member& me = decision.members[rank_];

    if (decision.finish_with.has_value())
      Agreed(*decision.finish_with, decision.iteration, decision.epoch);
    const bool keeps_live = me.keeps.has_value() && live_.has_value() && *me.keeps == 0;
    if (!keeps_live) live_.reset();
    if (!me.finishes) prepared_ = false;
    Point("decided", true);

    if (me.finishes) Commit();
    if (decision.source == RestoreDecision::Source::kBeginning) live_ = LinearState();
    if (me.keeps.has_value() && !keeps_live) live_ = *places[*me.keeps];
    Point("finished", true);

    // What the other one lacks and this one has.
    std::string given;
    for (const int i : me.gives) {
      const bool is_live = offers[rank_].held[i].kind == HeldState::Kind::kLive;
      if (!given.empty() || offers[rank_].held[i].pieces != offers[1 - rank_].needs) continue;
      given = Bytes(is_live ? *live_ : *places[i]);
    }
    const std::optional<All> fills = Exchange("fill", given);
    if (!fills.has_value()) return false;
    if (!live_.has_value()) live_ = FromBytes<LinearState>((*fills)[1 - rank_]);
    MUSTER_CHECK(live_->iteration == decision.iteration);
    next_batch_ = live_->iteration + 1;
    Point("filled", true);

    if (!Exchange("barrier", "").has_value()) return false;
    own_ = Reopen(memory_->own);
    kept_ = Reopen(memory_->kept);
    own_.Restored(decision.iteration, decision.snapshots, decision.safe_snapshots);
    kept_.Restored(decision.iteration, decision.snapshots, decision.safe_snapshots);
    Report();
    Point("started", true);
    step_ = live_->iteration;
    return Snapshot();
  }

  MemberOffer Offer(std::vector<const LinearState*>* places) const {
    MemberOffer offer;
    offer.layout = job_.sharded ? "halves" : "whole";
    offer.needs = {PieceOf(rank_)};
    const auto add = [&](const LinearState& state, HeldState::Kind kind, int rank) {
      offer.held.push_back({.kind = kind,
                            .iteration = state.iteration,
                            .epoch = state.epoch,
                            .layout = offer.layout,
                            .pieces = {PieceOf(rank)},
                            .num_pieces = job_.sharded ? kLinearRanks : 1});
      places->push_back(&state);
    };
    if (live_.has_value()) add(*live_, HeldState::Kind::kLive, rank_);
    for (const LinearSlot& slot : memory_->own) {
      if (slot.complete) add(slot.state, HeldState::Kind::kOwnSnapshot, rank_);
    }
    for (const LinearSlot& slot : memory_->kept) {
      if (slot.complete) add(slot.state, HeldState::Kind::kBuddySnapshot, keeps_for_);
    }
    offer.prepared = prepared_;
    offer.prepared_epoch = prepared_epoch_;
    offer.agreed = agreed_;
    offer.agreed_iteration = agreed_step_;
    offer.agreed_epoch = agreed_epoch_;
    return offer;
  }

  int64_t PieceOf(int rank) const { return job_.sharded ? rank : 0; }

  // ---- A step: Prepare, Return, Commit, Report and the copies of the model.

  bool Train() {
    while (live_->iteration < job_.steps) {
      step_ = live_->iteration + 1;
      Point("begun");
      if (!Prepare()) return false;
      Point("prepared");
      const AgreementVector vote = ToVector({.snapshot_complete = own_.vote()});
      const std::optional<All> votes = Exchange(absl::StrCat("agree", step_), Bytes(vote));
      if (!votes.has_value()) return false;
      AgreementVector result = vote;
      for (const std::string& one : *votes) result = MaxOf(result, FromBytes<AgreementVector>(one));
      Agreed(result, step_, epoch_);
      own_.Counted(FromReduced(result).snapshots_counted);
      Point("agreed");
      Commit();
      Point("committed");
      Report();
      Point("reported");
      if (!Snapshot()) return false;
    }
    Send(absl::StrCat("D ", epoch_, "\n", Bytes(*live_)));
    return Receive()[0] == 'Q';
  }

  // Gradients of this step's batch, summed over ranks in their order.
  bool Prepare() {
    std::array<double, kLinearFeatures> weights = live_->weights;
    if (job_.sharded) {
      const std::optional<All> halves = Exchange("weights", Bytes(live_->weights));
      if (!halves.has_value()) return false;
      for (int i = 0; i < kLinearFeatures; ++i) {
        weights[i] = FromBytes<decltype(weights)>((*halves)[OwnerOf(i)])[i];
      }
    }
    prepared_batch_ = next_batch_++;
    std::mt19937_64 random(static_cast<uint64_t>(prepared_batch_));
    std::normal_distribution<double> normal;
    std::array<double, kLinearFeatures + 1> sums{};  // gradients, loss
    for (int sample = 0; sample < kSamples; ++sample) {
      std::array<double, kLinearFeatures> x;
      double error = normal(random) * 0.1;
      for (int i = 0; i < kLinearFeatures; ++i) {
        x[i] = normal(random);
        error += x[i] * (weights[i] - (i + 1));
      }
      if (sample % kLinearRanks != rank_) continue;
      for (int i = 0; i < kLinearFeatures; ++i) sums[i] += 2 * error * x[i] / kSamples;
      sums[kLinearFeatures] += error * error / kSamples;
    }
    const std::optional<All> parts = Exchange("gradients", Bytes(sums));
    if (!parts.has_value()) return false;
    gradients_ = {};
    for (const std::string& part : *parts) {
      const auto one = FromBytes<decltype(sums)>(part);
      for (size_t i = 0; i < sums.size(); ++i) gradients_[i] += one[i];
    }
    prepared_ = true;
    prepared_epoch_ = epoch_;
    return true;
  }

  static int OwnerOf(int feature) { return feature < kLinearFeatures / kLinearRanks ? 0 : 1; }

  void Agreed(const AgreementVector& result, int64_t step, int64_t epoch) {
    agreed_ = result;
    agreed_step_ = step;
    agreed_epoch_ = epoch;
  }

  // Talks to nobody.
  void Commit() {
    for (int i = 0; i < kLinearFeatures; ++i) {
      if (job_.sharded && OwnerOf(i) != rank_) continue;
      live_->momenta[i] = 0.9 * live_->momenta[i] + gradients_[i];
      live_->weights[i] -= 0.05 * live_->momenta[i];
    }
    live_->last_loss = gradients_[kLinearFeatures];
    ++live_->iteration;
    live_->epoch = prepared_epoch_;
    // The batch that went in is the one that belongs there: no sample lost or repeated.
    MUSTER_CHECK(prepared_batch_ == live_->iteration);
    prepared_ = false;
  }

  void Report() {
    if (rank_ != kLinearRanks - 1 || live_->iteration == 0) return;
    char text[100];
    std::snprintf(text, sizeof(text), "S %ld %a\n", static_cast<long>(live_->iteration),
                  live_->last_loss);
    Send(text);
  }

  // ---- Snapshots.

  static Generations Reopen(const LinearSlot (&slots)[3]) {
    std::array<int64_t, kSnapshotSlots> complete;
    for (int i = 0; i < kSnapshotSlots; ++i) {
      complete[i] = slots[i].complete ? slots[i].state.iteration : kNoGeneration;
    }
    return Generations(complete);
  }

  // SIGKILL leaves memory as the program's order of stores made it.
  void Write(LinearSlot& slot, const LinearState& state, const char* torn) const {
    slot.complete = 0;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    slot.state = state;
    slot.state.weights[kLinearFeatures - 1] = 0;
    Point(torn);
    slot.state = state;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    slot.complete = 1;
  }

  bool Snapshot() {
    if (live_->iteration == job_.steps || !own_.Due(live_->iteration, job_.interval)) return true;
    const std::optional<int> slot = own_.Begin(live_->iteration);
    MUSTER_CHECK(slot.has_value());
    Write(memory_->own[*slot], *live_, "own torn");
    Point("own copied");
    const std::optional<All> copies =
        Exchange("snapshot", Bytes(own_.newest_counted()) + Bytes(*live_));
    if (!copies.has_value()) return false;
    const std::string& copy = (*copies)[keeps_for_];
    const int64_t counted = FromBytes<int64_t>(copy.substr(0, sizeof(int64_t)));
    const LinearState state = FromBytes<LinearState>(copy.substr(sizeof(int64_t)));
    if (const std::optional<int64_t> open = kept_.open_try(); open.has_value())
      kept_.Counted(*open == counted ? counted : kGivenUp);
    const std::optional<int> kept_slot = kept_.Begin(state.iteration);
    MUSTER_CHECK(kept_slot.has_value());
    Write(memory_->kept[*kept_slot], state, "buddy torn");
    kept_.Complete();
    own_.Complete();
    Point("buddy copied");
    return true;
  }

  const LinearJob& job_;
  const int rank_, socket_;
  int keeps_for_ = 0;
  LinearMemory* memory_ = nullptr;

  int64_t epoch_ = 0, step_ = 0;
  bool restarted_ = false;  // a training point ends the first run of its step only
  std::optional<LinearState> live_;
  int64_t next_batch_ = 1;
  bool prepared_ = false;
  int64_t prepared_epoch_ = 0, prepared_batch_ = 0;
  std::array<double, kLinearFeatures + 1> gradients_{};
  std::optional<AgreementVector> agreed_;
  int64_t agreed_step_ = 0, agreed_epoch_ = 0;
  Generations own_, kept_;
};

}  // namespace

void RunLinearTrainer(const LinearJob& job, int rank, int socket, int memory) {
  Trainer(job, rank, socket, memory).Run();
  _exit(0);
}

}  // namespace muster
