// JobService: submit, follow and cancel jobs.
#pragma once

#include "coordinator/server/call_gate.h"
#include "muster/v1/job.grpc.pb.h"

namespace muster {

class JobServiceImpl final : public v1::JobService::CallbackService {
 public:
  explicit JobServiceImpl(CallGate* gate) : gate_(gate) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::SubmitJobResponse* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::CancelJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override;
  grpc::ServerUnaryReactor* GetTopology(grpc::CallbackServerContext* context,
                                        const v1::GetTopologyRequest* request,
                                        v1::GetTopologyResponse* response) override;
  grpc::ServerUnaryReactor* ReplaceRank(grpc::CallbackServerContext* context,
                                        const v1::ReplaceRankRequest* request,
                                        v1::ReplaceRankResponse* response) override;
  grpc::ServerUnaryReactor* ReadLogs(grpc::CallbackServerContext* context,
                                     const v1::ReadLogsRequest* request,
                                     v1::ReadLogsResponse* response) override;

 private:
  CallGate* const gate_;
};

}  // namespace muster
