// TrainingService: requests to a job that trains, and what it has recorded.
#pragma once

#include "coordinator/server/call_gate.h"
#include "muster/v1/training.grpc.pb.h"

namespace muster {

class TrainingServiceImpl final : public v1::TrainingService::CallbackService {
 public:
  explicit TrainingServiceImpl(CallGate* gate) : gate_(gate) {}

  grpc::ServerUnaryReactor* RequestCheckpoint(grpc::CallbackServerContext* context,
                                              const v1::RequestCheckpointRequest* request,
                                              v1::RequestCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* RequestEvaluation(grpc::CallbackServerContext* context,
                                              const v1::RequestEvaluationRequest* request,
                                              v1::RequestEvaluationResponse* response) override;
  grpc::ServerUnaryReactor* GetMetrics(grpc::CallbackServerContext* context,
                                       const v1::GetMetricsRequest* request,
                                       v1::GetMetricsResponse* response) override;
  grpc::ServerUnaryReactor* GetEvents(grpc::CallbackServerContext* context,
                                      const v1::GetEventsRequest* request,
                                      v1::GetEventsResponse* response) override;

 private:
  CallGate* const gate_;
};

}  // namespace muster
