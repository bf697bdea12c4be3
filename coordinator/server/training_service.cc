#include "coordinator/server/training_service.h"

#include <utility>

#include "common/rpc/convert.h"
#include "coordinator/server/job_convert.h"
#include "coordinator/server/watch.h"

namespace muster {
namespace {

template <typename Response>
grpc::ServerUnaryReactor* RequestOf(CallGate* gate, const std::shared_ptr<UnaryCall>& call,
                                    RequestDirective event, Response* response) {
  gate->Post(call, std::move(event), [call, response](const Outcome& outcome) {
    if (!call->Claim()) return;
    if (const auto* reply = std::get_if<DirectiveReply>(&outcome.reply)) {
      response->set_directive(reply->number);
    }
    call->Finish(ToGrpc(outcome.status));
  });
  return call.get();
}

// One page of a ring: entries from `since` on, and where the next page starts.
template <typename T, typename Response, typename Add>
void FillPage(const Ring<T>& ring, int64_t since, size_t limit, const JobMachine& job,
              Response* response, Add add) {
  response->set_next(std::max(since, ring.next()));
  const auto page = ring.Since(since, limit);
  for (const auto* entry : page) add(*entry);
  if (page.size() == limit) response->set_next(page.back()->index + 1);
  response->set_job_ended(job.released());
  response->set_oldest(ring.oldest());
}

}  // namespace

grpc::ServerUnaryReactor* TrainingServiceImpl::RequestCheckpoint(
    grpc::CallbackServerContext* context, const v1::RequestCheckpointRequest* request,
    v1::RequestCheckpointResponse* response) {
  return RequestOf(gate_, gate_->Begin(context, "/muster.v1.TrainingService/RequestCheckpoint"),
                   RequestDirective{.job_id = request->job_id(),
                                    .reason = request->reason(),
                                    .kind = Directive::Kind::kCheckpoint},
                   response);
}

grpc::ServerUnaryReactor* TrainingServiceImpl::RequestEvaluation(
    grpc::CallbackServerContext* context, const v1::RequestEvaluationRequest* request,
    v1::RequestEvaluationResponse* response) {
  return RequestOf(gate_, gate_->Begin(context, "/muster.v1.TrainingService/RequestEvaluation"),
                   RequestDirective{.job_id = request->job_id(),
                                    .reason = request->reason(),
                                    .kind = Directive::Kind::kEvaluate},
                   response);
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetMetrics(grpc::CallbackServerContext* context,
                                                          const v1::GetMetricsRequest* request,
                                                          v1::GetMetricsResponse* response) {
  const auto call =
      gate_->Begin(context, "/muster.v1.TrainingService/GetMetrics", CallGate::Kind::kMayWait);
  const int64_t since = request->since();
  const size_t limit = PageSize(request->limit());
  WatchJob(
      gate_, call, request->job_id(), FromProto(request->wait()),
      [since](const JobMachine& job) {
        return job.released() || !job.history().steps().Since(since, 1).empty();
      },
      [since, limit, response](const JobMachine& job) {
        FillPage(job.history().steps(), since, limit, job, response,
                 [&](const auto& entry) { *response->add_records() = ToProto(entry); });
        return absl::OkStatus();
      });
  return call.get();
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetEvents(grpc::CallbackServerContext* context,
                                                         const v1::GetEventsRequest* request,
                                                         v1::GetEventsResponse* response) {
  const auto call =
      gate_->Begin(context, "/muster.v1.TrainingService/GetEvents", CallGate::Kind::kMayWait);
  const int64_t since = request->since();
  const size_t limit = PageSize(request->limit());
  WatchJob(
      gate_, call, request->job_id(), FromProto(request->wait()),
      [since](const JobMachine& job) {
        return job.released() || !job.history().events().Since(since, 1).empty();
      },
      [since, limit, response](const JobMachine& job) {
        FillPage(job.history().events(), since, limit, job, response,
                 [&](const auto& entry) { *response->add_events() = ToProto(entry); });
        return absl::OkStatus();
      });
  return call.get();
}

}  // namespace muster
