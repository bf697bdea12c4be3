#include "coordinator/server/training_service.h"

#include <utility>

#include "common/rpc/convert.h"
#include "coordinator/server/job_convert.h"
#include "coordinator/server/unary_call.h"
#include "coordinator/server/watch.h"

namespace muster {
namespace {

template <typename Response>
grpc::ServerUnaryReactor* RequestOf(Engine* engine, RequestDirective event, Response* response) {
  const auto call = UnaryCall::New();
  const absl::Status posted =
      engine->Post(std::move(event), [call, response](const Outcome& outcome) {
        if (!call->Claim()) return;
        if (const auto* reply = std::get_if<DirectiveReply>(&outcome.reply)) {
          response->set_directive(reply->number);
        }
        call->Finish(ToGrpc(outcome.status));
      });
  if (!posted.ok()) call->Answer(posted);
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
  return RequestOf(engine_,
                   RequestDirective{.job_id = request->job_id(),
                                    .reason = request->reason(),
                                    .kind = Directive::Kind::kCheckpoint},
                   response);
}

grpc::ServerUnaryReactor* TrainingServiceImpl::RequestEvaluation(
    grpc::CallbackServerContext* context, const v1::RequestEvaluationRequest* request,
    v1::RequestEvaluationResponse* response) {
  return RequestOf(engine_,
                   RequestDirective{.job_id = request->job_id(),
                                    .reason = request->reason(),
                                    .kind = Directive::Kind::kEvaluate},
                   response);
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetMetrics(grpc::CallbackServerContext* context,
                                                          const v1::GetMetricsRequest* request,
                                                          v1::GetMetricsResponse* response) {
  const auto call = UnaryCall::New();
  const int64_t since = request->since();
  const size_t limit = PageSize(request->limit());
  WatchJob(
      engine_, call, request->job_id(), FromProto(request->wait()),
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
  const auto call = UnaryCall::New();
  const int64_t since = request->since();
  const size_t limit = PageSize(request->limit());
  WatchJob(
      engine_, call, request->job_id(), FromProto(request->wait()),
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
