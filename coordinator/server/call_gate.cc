#include "coordinator/server/call_gate.h"

#include <optional>
#include <utility>

namespace muster {

std::shared_ptr<UnaryCall> CallGate::Begin(const grpc::CallbackServerContext* context,
                                           absl::string_view path, Kind kind) {
  const std::string client = context->peer();
  const absl::Duration start = clock_->Steady();
  const auto count = [this, path, start](grpc::StatusCode code) {
    stats_.Count(path, code, clock_->Steady() - start);
  };
  const bool may_wait = kind == Kind::kMayWait;
  absl::Status begun;
  {
    MutexLock lock(&mu_);
    begun = limiter_.Begin(client, may_wait);
  }
  if (!begun.ok()) {
    auto refused = UnaryCall::New({.client = client, .on_finish = count, .on_done = nullptr});
    refused->Answer(begun);
    return refused;
  }
  return UnaryCall::New({.client = client, .on_finish = count, .on_done = [=, this] {
                           MutexLock lock(&mu_);
                           limiter_.End(client, may_wait);
                         }});
}

void CallGate::Post(const std::shared_ptr<UnaryCall>& call, Event event, Engine::Done done) {
  const auto shared =
      std::make_shared<std::pair<Event, Engine::Done>>(std::move(event), std::move(done));
  Enter({call, [this, call, shared] {
           return engine_->Post(std::move(shared->first),
                                [this, call, shared](const Outcome& outcome) {
                                  shared->second(outcome);
                                  EndTurn(call->client());
                                });
         }});
}

void CallGate::Read(const std::shared_ptr<UnaryCall>& call, Engine::ReadFn read) {
  Enter({call, [this, call, read = std::move(read)] {
           return engine_->Read([this, call, read](const absl::Status& status,
                                                   const Coordinator& core, absl::Time now) {
             read(status, core, now);
             EndTurn(call->client());
           });
         }});
}

void CallGate::Watch(const std::shared_ptr<UnaryCall>& call, const std::string& job_id,
                     absl::Duration wait, Engine::Attempt attempt) {
  Enter({call, [=, this, attempt = std::move(attempt)] {
           // The turn is over with the first look; what waits then waits outside of the queue.
           const auto looked = std::make_shared<bool>(false);
           return engine_->Watch(
               job_id, wait,
               [this, call, attempt, looked](const Coordinator& core, absl::Time now, bool last) {
                 const bool answered = attempt(core, now, last);
                 if (!std::exchange(*looked, true)) EndTurn(call->client());
                 return answered;
               });
         }});
}

int CallGate::calls() {
  MutexLock lock(&mu_);
  return limiter_.calls();
}

int CallGate::queued() {
  MutexLock lock(&mu_);
  return limiter_.queued();
}

void CallGate::Enter(Work work) {
  if (work.call->claimed()) return;
  const std::string client = work.call->client();
  std::optional<Work> next;
  {
    MutexLock lock(&mu_);
    next = limiter_.TakeTurn(client, std::move(work));
  }
  if (next.has_value()) Run(*std::move(next));
}

// A loop, not a recursion: when the engine stops, all that is queued is refused from here.
void CallGate::Run(Work work) {
  while (true) {
    if (!work.call->claimed()) {
      const absl::Status entered = work.enter();
      if (entered.ok()) return;
      work.call->Answer(entered);
    }
    const std::string client = work.call->client();
    std::optional<Work> next;
    {
      MutexLock lock(&mu_);
      next = limiter_.EndTurn(client);
    }
    if (!next.has_value()) return;
    work = *std::move(next);
  }
}

void CallGate::EndTurn(const std::string& client) {
  std::optional<Work> next;
  {
    MutexLock lock(&mu_);
    next = limiter_.EndTurn(client);
  }
  if (next.has_value()) Run(*std::move(next));
}

}  // namespace muster
