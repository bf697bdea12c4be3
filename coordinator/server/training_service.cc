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
  const auto call =
      gate_->Begin(context, "/muster.v1.TrainingService/GetMetrics", CallGate::Kind::kMayWait);
  const int64_t since = request->since();
  const size_t limit = PageSize(request->limit());
  WatchJob(
      gate_, call, request->job_id(), FromProto(request->wait()),
      [since](const JobMachine& job) {
        return job.released() || !job.history().steps().Since(since, 1).empty();
      },
      [this, since, limit, response](const JobMachine& job) {
        return FillPage(gate_->engine(), job, LedgerKind::kStep, job.history().steps(), since,
                        limit, response, StepOfRow,
                        [&](const auto& entry) { *response->add_records() = ToProto(entry); });
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
      [this, since, limit, response](const JobMachine& job) {
        return FillPage(gate_->engine(), job, LedgerKind::kEvent, job.history().events(), since,
                        limit, response, EventOfRow,
                        [&](const auto& entry) { *response->add_events() = ToProto(entry); });
      });
  return call.get();
}

}  // namespace muster
