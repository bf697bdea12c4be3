#include "tests/sim/sim_coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr int64_t kLedgerTail = 100'000;

}  // namespace

SimCoordinatorHost::SimCoordinatorHost(Sim* sim, SimJournal* journal,
                                       const CoordinatorOptions& options, Outside outside)
    : sim_(sim), journal_(journal), options_(options), outside_(std::move(outside)) {}

void SimCoordinatorHost::Start() {
  ++lives_;
  wall_start_ = absl::FromUnixSeconds(1'700'000'000) + sim_->steady() + wall_offset_;
  steady_start_ = stopped_until_ = next_tick_ = next_sync_ = sim_->steady();
  core_ = std::make_unique<Coordinator>(options_);
  if (const absl::Status restored = core_->Restore(journal_->Load(kLedgerTail), Now());
      !restored.ok()) {
    sim_->Wrong(absl::StrCat("cannot restore: ", restored.ToString()));
  }
  if (const DurableChanges changes = core_->TakeChanges(); !changes.empty()) {
    sim_->Wrong("a restored core has changes to write, as if it had decided something");
  }
  sim_->Trace("coordinator: life ", lives_, " begins");
  outside_.restored();
  Wake(absl::ZeroDuration());
}

void SimCoordinatorHost::Crash() {
  if (!up()) return;
  sim_->Trace("coordinator: dies with ", queue_.size(), " events queued and ", held_.size(),
              " transactions held");
  core_.reset();
  queue_.clear();
  heartbeats_.clear();
  releases_.clear();
  held_.clear();
  held_releases_.clear();
  busy_ = false;
  outside_.died();
}

absl::Status SimCoordinatorHost::Post(Event event, Done done) {
  if (!up()) return absl::UnavailableError("connection refused");
  if (queue_.size() >= kMaxQueue) {
    ++num_refused_;
    return absl::ResourceExhaustedError("too many requests wait");
  }
  queue_.push_back({std::move(event), std::move(done)});
  if (queue_.size() == 1) Wake(sim_->Between(absl::ZeroDuration(), absl::Milliseconds(2)));
  return absl::OkStatus();
}

void SimCoordinatorHost::Beat(const Heartbeat& heartbeat) {
  if (up()) heartbeats_[heartbeat.stream] = heartbeat;
}

void SimCoordinatorHost::Wake(absl::Duration delay) {
  sim_->At(delay, [this, life = lives_] {
    if (life == lives_ && up()) Pump();
  });
}

void SimCoordinatorHost::Pump() {
  if (busy_) return;
  if (const absl::Duration rest = stopped_until_ - sim_->steady(); rest > absl::ZeroDuration()) {
    busy_ = true;
    sim_->At(rest, [this, life = lives_] {
      if (life != lives_ || !up()) return;
      busy_ = false;
      Pump();
    });
    return;
  }
  if (sim_->steady() >= next_tick_) {
    next_tick_ = sim_->steady() + kTick;
    Wake(kTick);
    HandleHeartbeats();
    if (held_.empty()) {
      Release tick;
      tick.outcome.actions = core_->Tick(Now());
      outside_.handled(tick.outcome.actions);
      releases_.push_back(std::move(tick));
    }
    if (sim_->steady() >= next_sync_ && !journal_->full()) {
      journal_->Sync();
      next_sync_ = sim_->steady() + absl::Seconds(1);
    }
  }
  for (Item& item : std::exchange(queue_, {})) HandleItem(std::move(item));
  Commit();
}

void SimCoordinatorHost::HandleHeartbeats() {
  for (auto& [stream, heartbeat] : std::exchange(heartbeats_, {})) {
    Release release;
    release.outcome = core_->Handle(heartbeat, Now());
    outside_.handled(release.outcome.actions);
    if (!release.outcome.status.ok()) {
      release.done = [this, stream = stream](const Outcome& outcome) {
        outside_.end(stream, outcome.status);
      };
    }
    releases_.push_back(std::move(release));
  }
}

void SimCoordinatorHost::HandleItem(Item item) {
  Release release{.done = std::move(item.done)};
  if (!held_.empty() && !MayHandleWhileHolding(item.event)) {
    ++num_refused_;
    release.outcome.status = absl::UnavailableError("the journal cannot be written: disk full");
    // Nothing of the core is in this answer, so it need not wait for the disk.
    if (release.done) release.done(release.outcome);
    return;
  }
  release.outcome = core_->Handle(item.event, Now());
  outside_.handled(release.outcome.actions);
  releases_.push_back(std::move(release));
}

bool SimCoordinatorHost::MayHandleWhileHolding(const Event& event) const {
  return std::holds_alternative<OpenStream>(event) || std::holds_alternative<CloseStream>(event) ||
         std::holds_alternative<Heartbeat>(event);
}

void SimCoordinatorHost::Commit() {
  std::vector<Release> releases = std::exchange(releases_, {});
  DurableChanges changes = core_->TakeChanges();
  const bool decision = changes.durability == Durability::kDecision;
  const bool was_holding = !held_.empty();
  std::optional<CrashPoint> crash;
  if (!changes.empty() || was_holding) {
    ++num_batches_;
    if (plan_.has_value() && plan_->first == num_batches_) {
      crash = plan_->second;
      plan_.reset();
    }
  }
  if (crash == CrashPoint::kBeforeWrite) return Crash();
  if (!changes.empty()) held_.push_back(std::move(changes));
  std::move(releases.begin(), releases.end(), std::back_inserter(held_releases_));
  while (!held_.empty()) {
    if (!journal_->Write(held_.front()).ok()) return;  // the next tick tries again
    held_.erase(held_.begin());
  }
  outside_.written();
  if (crash == CrashPoint::kAfterWrite) return Crash();
  releases = std::exchange(held_releases_, {});
  if (crash == CrashPoint::kAmidReplies) {
    releases.resize(releases.size() - sim_->Pick(static_cast<int>(releases.size()) + 1));
    LetGo(std::move(releases));
    return Crash();
  }
  if (!decision) {
    LetGo(std::move(releases));
  } else {
    // fsync: nobody hears of it before, and the thread does nothing else.
    busy_ = true;
    const absl::Duration disk = sim_->Chance(0.01)
                                    ? sim_->Between(absl::Milliseconds(20), absl::Milliseconds(400))
                                    : sim_->Between(absl::Microseconds(100), absl::Milliseconds(3));
    sim_->At(disk, [this, life = lives_, releases = std::move(releases)]() mutable {
      if (life != lives_ || !up()) return;
      busy_ = false;
      LetGo(std::move(releases));
      Pump();
    });
  }
  if (was_holding && up()) {
    sim_->Trace("coordinator: the journal can be written again");
    outside_.end_all(absl::UnavailableError("the journal could not be written for a while"));
  }
}

void SimCoordinatorHost::LetGo(std::vector<Release> releases) {
  for (const Release& release : releases) {
    if (release.done) release.done(release.outcome);
    CarryOut(release.outcome.actions);
    if (!up()) return;
  }
}

void SimCoordinatorHost::CarryOut(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (const auto* send = std::get_if<SendToAgent>(&action)) {
      outside_.send(send->stream, send->message);
    } else if (const auto* end = std::get_if<EndStream>(&action)) {
      outside_.end(end->stream, end->status);
    } else if (const auto* done = std::get_if<WaitDone>(&action)) {
      outside_.answer(*done);
    }
  }
}

}  // namespace muster
