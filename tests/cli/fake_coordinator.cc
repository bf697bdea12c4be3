#include "tests/cli/fake_coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/convert.h"

namespace muster {

FakeCoordinator::FakeCoordinator() {
  job_.set_job_id("job-1");
  job_.set_name("fake");
  job_.set_state(v1::JOB_STATE_RUNNING);
  job_.set_train_iters(1000);
  job_.set_world_size(2);
  *job_.mutable_submitted_at() = ToProto(absl::Now());
  *job_.mutable_started_at() = ToProto(absl::Now());
  ComeBack();
}

FakeCoordinator::~FakeCoordinator() { GoAway(); }

void FakeCoordinator::GoAway() { server_.Stop(); }

void FakeCoordinator::ComeBack() {
  server_.Start({static_cast<v1::JobService::Service*>(this),
                 static_cast<v1::TrainingService::Service*>(this),
                 static_cast<v1::MembershipService::Service*>(this)});
}

void FakeCoordinator::SetJob(const v1::JobStatus& job) {
  MutexLock lock(&mu_);
  job_ = job;
}
void FakeCoordinator::SetSpec(const std::string& spec_json) {
  MutexLock lock(&mu_);
  spec_ = spec_json;
}
void FakeCoordinator::SetStorageTrouble(const std::string& text) {
  MutexLock lock(&mu_);
  storage_trouble_ = text;
}
void FakeCoordinator::AddStep(int64_t iteration) {
  MutexLock lock(&mu_);
  v1::MetricsRecord record;
  record.set_epoch(1);
  v1::StepReport* step = record.mutable_step();
  step->set_iteration(iteration);
  step->set_lm_loss(2.5);
  step->set_elapsed_ms(100);
  step->set_tokens_per_s(12345);
  *job_.mutable_last() = record;
  job_.set_iteration(iteration);
  records_.push_back(record);
}
void FakeCoordinator::AddEvent(const std::string& kind, const std::string& text) {
  MutexLock lock(&mu_);
  v1::Event event;
  event.set_kind(kind);
  event.set_text(text);
  *event.mutable_time() = ToProto(absl::Now());
  events_.push_back(event);
}
void FakeCoordinator::AddLog(int rank, const std::string& text, int64_t epoch) {
  MutexLock lock(&mu_);
  v1::LogLine line;
  line.set_rank(rank);
  line.set_epoch(epoch);
  line.set_text(text);
  lines_.push_back(line);
}
void FakeCoordinator::AddWorker(const v1::WorkerStatus& worker) {
  MutexLock lock(&mu_);
  *workers_.add_workers() = worker;
}
void FakeCoordinator::EndJob(v1::JobState state, int exit_code, const std::string& reason) {
  MutexLock lock(&mu_);
  job_.set_state(state);
  job_.set_exit_code(exit_code);
  job_.set_ended(true);
  job_.set_reason(reason);
  *job_.mutable_ended_at() = ToProto(absl::Now());
}
void FakeCoordinator::Refuse(const grpc::Status& status) {
  MutexLock lock(&mu_);
  refusal_ = status;
}
std::vector<std::string> FakeCoordinator::submitted() const {
  MutexLock lock(&mu_);
  return submitted_;
}

grpc::Status FakeCoordinator::Find(const std::string& job_id) const {
  if (!refusal_.ok()) return refusal_;
  if (job_id == job_.job_id()) return grpc::Status::OK;
  return grpc::Status(grpc::NOT_FOUND, absl::StrCat("job \"", job_id, "\" is not known"));
}

grpc::Status FakeCoordinator::GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                                     v1::GetJobResponse* response) {
  MutexLock lock(&mu_);
  *response->mutable_job() = job_;
  response->set_spec_json(spec_);
  response->set_storage_trouble(storage_trouble_);
  return Find(request->job_id());
}

grpc::Status FakeCoordinator::ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                                       v1::ListJobsResponse* response) {
  MutexLock lock(&mu_);
  *response->add_jobs() = job_;
  response->set_storage_trouble(storage_trouble_);
  return refusal_;
}

grpc::Status FakeCoordinator::SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                                        v1::SubmitJobResponse* response) {
  MutexLock lock(&mu_);
  if (!refusal_.ok()) return refusal_;
  submitted_.push_back(request->spec_json());
  response->set_job_id(absl::StrCat("job-", 1 + submitted_.size()));
  return grpc::Status::OK;
}

// The entries from `since` on; waits for one as long as the request says.
template <typename Entry, typename Request, typename Response, typename Add>
grpc::Status FakeCoordinator::Page(std::vector<Entry> FakeCoordinator::*all_of,
                                   const Request& request, Response* response, const Add& add) {
  const absl::Time limit = absl::Now() + FromProto(request.wait());
  const size_t since = static_cast<size_t>(std::max<int64_t>(0, request.since()));
  while (true) {
    {
      MutexLock lock(&mu_);
      if (const grpc::Status found = Find(request.job_id()); !found.ok()) return found;
      const std::vector<Entry>& all = this->*all_of;
      if (all.size() > since || job_.ended() || absl::Now() >= limit) {
        for (size_t i = since; i < all.size(); ++i) add(all[i]);
        response->set_next(static_cast<int64_t>(std::max(since, all.size())));
        response->set_job_ended(job_.ended());
        return grpc::Status::OK;
      }
    }
    absl::SleepFor(absl::Milliseconds(5));  // as a server does that waits for news
  }
}

grpc::Status FakeCoordinator::ReadLogs(grpc::ServerContext*, const v1::ReadLogsRequest* request,
                                       v1::ReadLogsResponse* response) {
  return Page(&FakeCoordinator::lines_, *request, response, [&](const v1::LogLine& line) {
    if (!request->has_rank() || request->rank() == line.rank()) *response->add_lines() = line;
  });
}
grpc::Status FakeCoordinator::GetMetrics(grpc::ServerContext*, const v1::GetMetricsRequest* request,
                                         v1::GetMetricsResponse* response) {
  return Page(&FakeCoordinator::records_, *request, response,
              [&](const v1::MetricsRecord& record) { *response->add_records() = record; });
}
grpc::Status FakeCoordinator::GetEvents(grpc::ServerContext*, const v1::GetEventsRequest* request,
                                        v1::GetEventsResponse* response) {
  return Page(&FakeCoordinator::events_, *request, response,
              [&](const v1::Event& event) { *response->add_events() = event; });
}
grpc::Status FakeCoordinator::ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest*,
                                          v1::ListWorkersResponse* response) {
  MutexLock lock(&mu_);
  *response = workers_;
  return refusal_;
}
grpc::Status FakeCoordinator::DrainWorker(grpc::ServerContext*,
                                          const v1::DrainWorkerRequest* request,
                                          v1::DrainWorkerResponse* response) {
  MutexLock lock(&mu_);
  if (!refusal_.ok()) return refusal_;
  for (v1::WorkerStatus& worker : *workers_.mutable_workers()) {
    if (worker.description().name() != request->worker()) continue;
    worker.set_draining(!request->undo());
    *response->mutable_worker() = worker;
    return grpc::Status::OK;
  }
  return grpc::Status(grpc::NOT_FOUND, absl::StrCat("\"", request->worker(),
                                                    "\" is no worker or node that is known"));
}
grpc::Status FakeCoordinator::CordonWorker(grpc::ServerContext*,
                                           const v1::CordonWorkerRequest* request,
                                           v1::CordonWorkerResponse* response) {
  MutexLock lock(&mu_);
  for (v1::WorkerStatus& worker : *workers_.mutable_workers()) {
    if (worker.description().name() != request->worker() && worker.node() != request->worker()) {
      continue;
    }
    worker.set_cordoned(!request->undo());
    *response->add_workers() = worker;
  }
  if (response->workers_size() > 0) return grpc::Status::OK;
  return grpc::Status(grpc::NOT_FOUND, "no such worker or node");
}
grpc::Status FakeCoordinator::ReplaceRank(grpc::ServerContext*,
                                          const v1::ReplaceRankRequest* request,
                                          v1::ReplaceRankResponse* response) {
  if (request->rank() > 8) return grpc::Status(grpc::INVALID_ARGUMENT, "has ranks 0 to 8");
  response->set_from(absl::StrCat("a/", request->rank()));
  response->set_to(request->worker().empty() ? "any" : request->worker());
  return grpc::Status::OK;
}

}  // namespace muster
