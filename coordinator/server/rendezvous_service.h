// RendezvousService, and the calls that wait for keys.
#pragma once

#include <map>
#include <memory>

#include "coordinator/server/call_gate.h"
#include "muster/v1/rendezvous.grpc.pb.h"

namespace muster {

// Calls of WaitPrefix that the core has not answered. Thread-safe.
class WaitingCalls {
 public:
  struct Call {
    std::shared_ptr<UnaryCall> call;
    v1::WaitPrefixResponse* response = nullptr;
  };
  WaitToken NextToken();
  void Add(WaitToken token, Call call);
  void Remove(WaitToken token);
  void Answer(const WaitDone& done);
  void AnswerAll(const absl::Status& status);

 private:
  Mutex mu_;
  WaitToken next_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<WaitToken, Call> calls_ ABSL_GUARDED_BY(mu_);
};

class RendezvousServiceImpl final : public v1::RendezvousService::CallbackService {
 public:
  RendezvousServiceImpl(CallGate* gate, WaitingCalls* waiting) : gate_(gate), waiting_(waiting) {}

  grpc::ServerUnaryReactor* SetKey(grpc::CallbackServerContext* context,
                                   const v1::SetKeyRequest* request,
                                   v1::SetKeyResponse* response) override;
  grpc::ServerUnaryReactor* WaitPrefix(grpc::CallbackServerContext* context,
                                       const v1::WaitPrefixRequest* request,
                                       v1::WaitPrefixResponse* response) override;

 private:
  CallGate* const gate_;
  WaitingCalls* const waiting_;
};

}  // namespace muster
