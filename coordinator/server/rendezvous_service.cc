#include "coordinator/server/rendezvous_service.h"

#include <utility>

#include "common/rpc/convert.h"

namespace muster {

WaitToken WaitingCalls::NextToken() {
  MutexLock lock(&mu_);
  return next_++;
}

void WaitingCalls::Add(WaitToken token, Call call) {
  MutexLock lock(&mu_);
  calls_[token] = std::move(call);
}

void WaitingCalls::Remove(WaitToken token) {
  Call removed;  // let go of outside of the lock
  MutexLock lock(&mu_);
  const auto found = calls_.find(token);
  if (found == calls_.end()) return;
  removed = std::move(found->second);
  calls_.erase(found);
}

void WaitingCalls::Answer(const WaitDone& done) {
  Call waiting;
  {
    MutexLock lock(&mu_);
    const auto found = calls_.find(done.token);
    if (found == calls_.end()) return;
    waiting = std::move(found->second);
    calls_.erase(found);
  }
  if (!waiting.call->Claim()) return;
  for (const auto& [key, value] : done.entries) {
    auto* entry = waiting.response->add_entries();
    entry->set_key(key);
    entry->set_value(value);
  }
  waiting.call->Finish(ToGrpc(done.status));
}

void WaitingCalls::AnswerAll(const absl::Status& status) {
  std::map<WaitToken, Call> all;
  {
    MutexLock lock(&mu_);
    all.swap(calls_);
  }
  for (auto& [token, waiting] : all) waiting.call->Answer(status);
}

grpc::ServerUnaryReactor* RendezvousServiceImpl::SetKey(grpc::CallbackServerContext* context,
                                                        const v1::SetKeyRequest* request,
                                                        v1::SetKeyResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.RendezvousService/SetKey");
  gate_->Post(call,
              muster::SetKey{.job_id = request->job_id(),
                             .epoch = request->epoch(),
                             .key = request->key(),
                             .value = request->value()},
              [call](const Outcome& outcome) { call->Answer(outcome.status); });
  return call.get();
}

grpc::ServerUnaryReactor* RendezvousServiceImpl::WaitPrefix(grpc::CallbackServerContext* context,
                                                            const v1::WaitPrefixRequest* request,
                                                            v1::WaitPrefixResponse* response) {
  const auto call =
      gate_->Begin(context, "/muster.v1.RendezvousService/WaitPrefix", CallGate::Kind::kMayWait);
  if (call->claimed()) return call.get();  // refused
  const WaitToken token = waiting_->NextToken();
  call->OnCancelled([this, token] {
    waiting_->Remove(token);
    gate_->PostAside(CancelWait{token});  // else it ends with its limit
  });
  waiting_->Add(token, {call, response});
  gate_->Post(call,
              muster::WaitPrefix{.token = token,
                                 .job_id = request->job_id(),
                                 .epoch = request->epoch(),
                                 .prefix = request->prefix(),
                                 .count = request->count(),
                                 .limit = FromProto(request->limit())},
              [this, call, token](const Outcome& outcome) {
                if (outcome.status.ok()) return;
                waiting_->Remove(token);
                call->Answer(outcome.status);
              });
  return call.get();
}

}  // namespace muster
