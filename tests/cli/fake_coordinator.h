// A coordinator that says what the test wants, by real gRPC on a port of loopback: for commands
// that only look. It can go away and come back on the same port, as one that restarts.
#pragma once

#include <string>
#include <vector>

#include "common/runtime/mutex.h"
#include "muster/v1/job.grpc.pb.h"
#include "muster/v1/membership.grpc.pb.h"
#include "muster/v1/training.grpc.pb.h"
#include "tests/support/loopback_server.h"

namespace muster {

class FakeCoordinator : private v1::JobService::Service,
                        private v1::TrainingService::Service,
                        private v1::MembershipService::Service {
 public:
  FakeCoordinator();
  ~FakeCoordinator() override;

  void GoAway();
  void ComeBack();
  std::string address() const { return server_.address(); }

  // The one job there is, and everything of it; thread-safe.
  void SetJob(const v1::JobStatus& job);
  void SetSpec(const std::string& spec_json);
  void SetStorageTrouble(const std::string& text);
  void AddStep(int64_t iteration);  // the job's iteration follows
  void AddEvent(const std::string& kind, const std::string& text);
  void AddLog(int rank, const std::string& text, int64_t epoch = 1);
  void AddWorker(const v1::WorkerStatus& worker);
  void EndJob(v1::JobState state, int exit_code, const std::string& reason);
  // What the calls end with from now on; OK: they are answered.
  void Refuse(const grpc::Status& status);
  std::vector<std::string> submitted() const;  // specs

 private:
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::GetJobResponse* response) override;
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse* response) override;
  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override;
  grpc::Status ReadLogs(grpc::ServerContext*, const v1::ReadLogsRequest* request,
                        v1::ReadLogsResponse* response) override;
  grpc::Status GetMetrics(grpc::ServerContext*, const v1::GetMetricsRequest* request,
                          v1::GetMetricsResponse* response) override;
  grpc::Status GetEvents(grpc::ServerContext*, const v1::GetEventsRequest* request,
                         v1::GetEventsResponse* response) override;
  grpc::Status ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse* response) override;
  grpc::Status DrainWorker(grpc::ServerContext*, const v1::DrainWorkerRequest* request,
                           v1::DrainWorkerResponse* response) override;
  grpc::Status CordonWorker(grpc::ServerContext*, const v1::CordonWorkerRequest* request,
                            v1::CordonWorkerResponse* response) override;
  grpc::Status ReplaceRank(grpc::ServerContext*, const v1::ReplaceRankRequest* request,
                           v1::ReplaceRankResponse* response) override;
  grpc::Status Find(const std::string& job_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  template <typename Entry, typename Request, typename Response, typename Add>
  grpc::Status Page(std::vector<Entry> FakeCoordinator::*all_of, const Request& request,
                    Response* response, const Add& add);

  LoopbackServer server_;
  mutable Mutex mu_;
  v1::JobStatus job_ ABSL_GUARDED_BY(mu_);
  std::string spec_, storage_trouble_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::MetricsRecord> records_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::Event> events_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::LogLine> lines_ ABSL_GUARDED_BY(mu_);
  v1::ListWorkersResponse workers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> submitted_ ABSL_GUARDED_BY(mu_);
  grpc::Status refusal_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
