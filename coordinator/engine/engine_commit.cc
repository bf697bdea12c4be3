// Engine's part that writes the journal, and waits while that cannot be done.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/runtime/log.h"
#include "coordinator/engine/engine.h"

namespace muster {

void Engine::Commit() {
  if (std::exchange(handled_, false)) MergeChanges(core_.TakeChanges(), &unwritten_);
  if (journal_ == nullptr) unwritten_ = {};
  if (holding() && !std::exchange(retry_, false)) {
    ReleaseReads();
    return;
  }
  if (!unwritten_.empty()) {
    const absl::Status status = journal_->Write(unwritten_);
    if (!status.ok()) {
      OnWriteFailed(status);
      return;
    }
    if (unwritten_.durability == Durability::kDecision) {
      unsynced_since_ = absl::InfiniteFuture();
    } else {
      unsynced_since_ = std::min(unsynced_since_, Now());
    }
    unwritten_ = {};
  }
  if (holding()) OnWrittenAgain();
  ReleaseAll();
}

void Engine::OnWriteFailed(const absl::Status& status) {
  const bool first = !holding();
  write_error_ = status;
  retry_ = false;
  if (first) {
    MUSTER_LOG(kError)
        << "the journal cannot be written, so nothing is decided until it can reason=\""
        << std::string(status.message()) << "\"";
    SetStorage(status);
  }
  ReleaseReads();
}

void Engine::OnWrittenAgain() {
  MUSTER_LOG(kWarning) << "the journal could be written again";
  write_error_ = absl::OkStatus();
  next_maintenance_ = absl::InfinitePast();  // it says whether all is well
  Outcome outcome;
  for (const auto& [incarnation, agent] : core_.membership().agents()) {
    if (agent.stream == 0) continue;
    outcome.actions.emplace_back(EndStream{
        agent.stream,
        absl::UnavailableError("reports were not written for a while; reconnect and send them "
                               "again")});
  }
  Keep(std::move(outcome), nullptr);
  for (const auto& [job_id, watcher] : watchers_) changed_jobs_.insert(job_id);
}

Outcome Engine::AnswerWhileHolding(const Event& event) const {
  // Without an acknowledgement the agent keeps them; its stream stays for its heartbeats.
  if (std::holds_alternative<ReportBatch>(event)) return {};
  return {.status = absl::UnavailableError(
              absl::StrCat("the coordinator cannot write its journal: ", write_error_.message(),
                           "; try again when that is mended"))};
}

void Engine::MaintainJournal(absl::Time now) {
  if (journal_ == nullptr) return;
  if (!holding() && now - unsynced_since_ >= options_.sync_within) {
    const absl::Status synced = journal_->Sync();
    if (synced.ok()) {
      unsynced_since_ = absl::InfiniteFuture();
    } else {
      SetStorage(synced);
    }
  }
  if (holding() || now < next_maintenance_) return;
  next_maintenance_ = now + options_.maintain_every;
  SetStorage(journal_->Maintain());
}

void Engine::SetStorage(const absl::Status& status) {
  const StorageState state{.writable = status.ok(), .reason = std::string(status.message())};
  if (state.writable == core_.storage().writable && state.reason == core_.storage().reason) return;
  if (state.writable) {
    MUSTER_LOG(kInfo) << "the journal's storage is in order again";
  } else {
    MUSTER_LOG(kError) << "the journal's storage is not in order reason=\"" << state.reason << "\"";
  }
  handled_ = true;
  Keep(core_.Handle(state, Now()), nullptr);
}

}  // namespace muster
