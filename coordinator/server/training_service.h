// TrainingService: requests to a job that trains, what it has recorded, and traces of its steps.
#pragma once

#include "coordinator/server/call_gate.h"
#include "coordinator/server/trace_store.h"
#include "muster/v1/training.grpc.pb.h"

namespace muster {

class TrainingServiceImpl final : public v1::TrainingService::CallbackService {
 public:
  // Both outlive it.
  TrainingServiceImpl(CallGate* gate, TraceStore* traces) : gate_(gate), traces_(traces) {}

  grpc::ServerUnaryReactor* RequestCheckpoint(grpc::CallbackServerContext* context,
                                              const v1::RequestCheckpointRequest* request,
                                              v1::RequestCheckpointResponse* response) override;
  grpc::ServerUnaryReactor* RequestEvaluation(grpc::CallbackServerContext* context,
                                              const v1::RequestEvaluationRequest* request,
                                              v1::RequestEvaluationResponse* response) override;
  grpc::ServerUnaryReactor* RequestTrace(grpc::CallbackServerContext* context,
                                         const v1::RequestTraceRequest* request,
                                         v1::RequestTraceResponse* response) override;
  grpc::ServerUnaryReactor* GetTrace(grpc::CallbackServerContext* context,
                                     const v1::GetTraceRequest* request,
                                     v1::GetTraceResponse* response) override;
  grpc::ServerUnaryReactor* ReadTrace(grpc::CallbackServerContext* context,
                                      const v1::ReadTraceRequest* request,
                                      v1::ReadTraceResponse* response) override;
  grpc::ServerUnaryReactor* UploadTrace(grpc::CallbackServerContext* context,
                                        const v1::UploadTraceRequest* request,
                                        v1::UploadTraceResponse* response) override;
  grpc::ServerUnaryReactor* GetMetrics(grpc::CallbackServerContext* context,
                                       const v1::GetMetricsRequest* request,
                                       v1::GetMetricsResponse* response) override;
  grpc::ServerUnaryReactor* GetEvents(grpc::CallbackServerContext* context,
                                      const v1::GetEventsRequest* request,
                                      v1::GetEventsResponse* response) override;

 private:
  CallGate* const gate_;
  TraceStore* const traces_;
};

}  // namespace muster
