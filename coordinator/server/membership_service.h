// MembershipService: agents register, keep a stream, drain. Validates, converts, hands to the
// engine.
#pragma once

#include "coordinator/server/agent_stream.h"
#include "coordinator/server/call_gate.h"
#include "muster/v1/membership.grpc.pb.h"

namespace muster {

class MembershipServiceImpl final : public v1::MembershipService::CallbackService {
 public:
  // `coordinator_id`: see RegisterResponse.
  MembershipServiceImpl(CallGate* gate, AgentStreams* streams, std::string coordinator_id)
      : gate_(gate), streams_(streams), coordinator_id_(std::move(coordinator_id)) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override;
  grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>* Connect(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* DrainWorker(grpc::CallbackServerContext* context,
                                        const v1::DrainWorkerRequest* request,
                                        v1::DrainWorkerResponse* response) override;
  grpc::ServerUnaryReactor* CordonWorker(grpc::CallbackServerContext* context,
                                         const v1::CordonWorkerRequest* request,
                                         v1::CordonWorkerResponse* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;

 private:
  CallGate* const gate_;
  AgentStreams* const streams_;
  const std::string coordinator_id_;
};

}  // namespace muster
