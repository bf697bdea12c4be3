#include "coordinator/server/training_service.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "coordinator/core/ledger_rows.h"
#include "coordinator/server/job_convert.h"
#include "coordinator/server/reason.h"
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

// A step that was done again since: the newer record is in memory.
bool IsReplaced(const Ring<StepRecord>& newer, const StepRecord& record) {
  return !newer.empty() && record.step.iteration >= newer.entries().front().value.step.iteration;
}
bool IsReplaced(const Ring<JobEvent>&, const JobEvent&) { return false; }

// One page of what a job has done: entries from `since` on, and where the next page starts. What is
// not in memory any more comes from the journal's ledger.
template <typename T, typename Response, typename OfRow, typename Add>
absl::Status FillPage(Engine* engine, const JobMachine& job, LedgerKind kind, const Ring<T>& ring,
                      int64_t since, size_t limit, Response* response, OfRow of_row, Add add) {
  response->set_job_ended(job.released());
  response->set_oldest(ring.oldest());
  size_t taken = 0;
  if (since < ring.oldest()) {
    ASSIGN_OR_RETURN(const std::vector<LedgerRow> rows,
                     engine->ReadLedger(job, kind, since, static_cast<int64_t>(limit)));
    for (const LedgerRow& row : rows) {
      if (row.index >= ring.oldest()) break;
      ASSIGN_OR_RETURN(const auto entry, of_row(row));
      if (taken++ == 0) response->set_oldest(row.index);
      response->set_next(row.index + 1);
      if (!IsReplaced(ring, entry.value)) add(entry);
    }
  }
  if (taken == limit) return absl::OkStatus();
  const auto page = ring.Since(since, limit - taken);
  for (const auto* entry : page) add(*entry);
  response->set_next(page.size() + taken == limit ? page.back()->index + 1
                                                  : std::max(since, ring.next()));
  return absl::OkStatus();
}

// The page that `request` asks for, once there is something for it.
template <typename Request, typename Response, typename RingOf, typename OfRow, typename Add>
grpc::ServerUnaryReactor* PageOf(CallGate* gate, grpc::CallbackServerContext* context,
                                 const char* method, const Request& request, Response* response,
                                 RingOf ring_of, LedgerKind kind, OfRow of_row, Add add) {
  const auto call = gate->Begin(context, method, CallGate::Kind::kMayWait);
  const int64_t since = request.since();
  const size_t limit = PageSize(request.limit());
  WatchJob(
      gate, call, request.job_id(), FromProto(request.wait()),
      [ring_of, since](const JobMachine& job) {
        return job.released() || !ring_of(job).Since(since, 1).empty();
      },
      [=](const JobMachine& job) {
        return FillPage(gate->engine(), job, kind, ring_of(job), since, limit, response, of_row,
                        add);
      });
  return call.get();
}

}  // namespace

grpc::ServerUnaryReactor* TrainingServiceImpl::RequestCheckpoint(
    grpc::CallbackServerContext* context, const v1::RequestCheckpointRequest* request,
    v1::RequestCheckpointResponse* response) {
  return RequestOf(gate_, gate_->Begin(context, "/muster.v1.TrainingService/RequestCheckpoint"),
                   RequestDirective{.job_id = request->job_id(),
                                    .reason = ReasonOf(request->reason()),
                                    .kind = Directive::Kind::kCheckpoint},
                   response);
}

grpc::ServerUnaryReactor* TrainingServiceImpl::RequestEvaluation(
    grpc::CallbackServerContext* context, const v1::RequestEvaluationRequest* request,
    v1::RequestEvaluationResponse* response) {
  return RequestOf(gate_, gate_->Begin(context, "/muster.v1.TrainingService/RequestEvaluation"),
                   RequestDirective{.job_id = request->job_id(),
                                    .reason = ReasonOf(request->reason()),
                                    .kind = Directive::Kind::kEvaluate},
                   response);
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetMetrics(grpc::CallbackServerContext* context,
                                                          const v1::GetMetricsRequest* request,
                                                          v1::GetMetricsResponse* response) {
  return PageOf(
      gate_, context, "/muster.v1.TrainingService/GetMetrics", *request, response,
      [](const JobMachine& job) -> const Ring<StepRecord>& { return job.history().steps(); },
      LedgerKind::kStep, StepOfRow,
      [response](const auto& entry) { *response->add_records() = ToProto(entry); });
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetEvents(grpc::CallbackServerContext* context,
                                                         const v1::GetEventsRequest* request,
                                                         v1::GetEventsResponse* response) {
  return PageOf(
      gate_, context, "/muster.v1.TrainingService/GetEvents", *request, response,
      [](const JobMachine& job) -> const Ring<JobEvent>& { return job.history().events(); },
      LedgerKind::kEvent, EventOfRow,
      [response](const auto& entry) { *response->add_events() = ToProto(entry); });
}

}  // namespace muster
