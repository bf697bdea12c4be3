#include "tests/sim/sim_coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr int64_t kLedgerTail = 100'000;

// As coordinator/engine/journal.h's MergeChanges.
void Merge(DurableChanges more, DurableChanges* changes) {
  for (DurableRecord& record : more.records) {
    const auto known =
        std::find_if(changes->records.begin(), changes->records.end(),
                     [&](const DurableRecord& other) { return other.key == record.key; });
    if (known == changes->records.end()) {
      changes->records.push_back(std::move(record));
    } else {
      *known = std::move(record);
    }
  }
  std::move(more.ledger.begin(), more.ledger.end(), std::back_inserter(changes->ledger));
  changes->forgotten_jobs.insert(changes->forgotten_jobs.end(), more.forgotten_jobs.begin(),
                                 more.forgotten_jobs.end());
  changes->durability = std::max(changes->durability, more.durability);
}

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
  unwritten_ = core_->TakeChanges();
  if (lives_ > 1 && !unwritten_.empty()) {
    sim_->Wrong("a restored core has changes to write, as if it had decided something");
  }
  sim_->Trace("coordinator: life ", lives_, " begins");
  outside_.restored();
  Wake(absl::ZeroDuration());
}

void SimCoordinatorHost::Crash() {
  if (!up()) return;
  sim_->Trace("coordinator: dies with ", queue_.size(), " events queued",
              holding_ ? " and a disk that is full" : "");
  core_.reset();
  queue_.clear();
  heartbeats_.clear();
  releases_.clear();
  unwritten_ = {};
  busy_ = holding_ = retry_ = false;
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
    retry_ = true;
    if (!holding_) {
      Outcome tick{.actions = core_->Tick(Now())};
      outside_.handled(tick.actions);
      Keep(std::move(tick), nullptr);
      if (sim_->steady() >= next_sync_ && !journal_->full()) {
        journal_->Sync();
        next_sync_ = sim_->steady() + absl::Seconds(1);
        SetStorage(disk_);
      }
    }
  }
  for (Item& item : std::exchange(queue_, {})) HandleItem(std::move(item));
  Commit();
}

void SimCoordinatorHost::Keep(Outcome outcome, Done done) {
  releases_.push_back({std::move(done), std::move(outcome)});
}

void SimCoordinatorHost::HandleHeartbeats() {
  for (auto& [stream, heartbeat] : std::exchange(heartbeats_, {})) {
    Outcome outcome = core_->Handle(heartbeat, Now());
    outside_.handled(outcome.actions);
    if (!outcome.status.ok()) outcome.actions.emplace_back(EndStream{stream, outcome.status});
    Keep(std::move(outcome), nullptr);
  }
}

void SimCoordinatorHost::HandleItem(Item item) {
  const bool harmless = std::holds_alternative<CloseStream>(item.event) ||
                        std::holds_alternative<CancelWait>(item.event);
  if (holding_ && !harmless) {
    ++num_refused_;
    // Reports: no acknowledgement, so the agent keeps them; its stream stays for its heartbeats.
    Outcome refusal;
    if (!std::holds_alternative<ReportBatch>(item.event)) {
      refusal.status = absl::UnavailableError("the journal cannot be written: disk full");
    }
    if (item.done) item.done(refusal);
    return;
  }
  Outcome outcome = core_->Handle(item.event, Now());
  outside_.handled(outcome.actions);
  Keep(std::move(outcome), std::move(item.done));
}

void SimCoordinatorHost::SetStorage(const absl::Status& status) {
  if (status.ok() == core_->storage().writable) return;
  Outcome outcome = core_->Handle(StorageState{status.ok(), std::string(status.message())}, Now());
  outside_.handled(outcome.actions);
  Keep(std::move(outcome), nullptr);
}

void SimCoordinatorHost::OnWriteFailed(const absl::Status& status) {
  if (std::exchange(holding_, true)) return;
  sim_->Trace("coordinator: the journal cannot be written");
  SetStorage(status);
}

void SimCoordinatorHost::OnWrittenAgain() {
  sim_->Trace("coordinator: the journal can be written again");
  holding_ = false;
  next_sync_ = absl::ZeroDuration();
  Outcome outcome;
  for (const auto& [incarnation, agent] : core_->membership().agents()) {
    if (agent.stream == 0) continue;
    outcome.actions.emplace_back(
        EndStream{agent.stream, absl::UnavailableError("reports were not written for a while")});
  }
  Keep(std::move(outcome), nullptr);
}

void SimCoordinatorHost::Commit() {
  Merge(core_->TakeChanges(), &unwritten_);
  if (holding_ && !std::exchange(retry_, false)) return;
  const bool decision = unwritten_.durability == Durability::kDecision;
  std::optional<CrashPoint> crash;
  if (!unwritten_.empty()) {
    ++num_batches_;
    if (plan_.has_value() && plan_->first == num_batches_) {
      crash = plan_->second;
      plan_.reset();
    }
    if (crash == CrashPoint::kBeforeWrite) return Crash();
    if (const absl::Status status = journal_->Write(unwritten_); !status.ok()) {
      return OnWriteFailed(status);
    }
    unwritten_ = {};
  }
  outside_.written();
  if (crash == CrashPoint::kAfterWrite) return Crash();
  if (holding_) OnWrittenAgain();
  std::vector<Release> releases = std::exchange(releases_, {});
  if (crash == CrashPoint::kAmidReplies) {
    releases.resize(releases.size() - sim_->Pick(static_cast<int>(releases.size()) + 1));
    LetGo(std::move(releases));
    return Crash();
  }
  if (!decision) return LetGo(std::move(releases));
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
