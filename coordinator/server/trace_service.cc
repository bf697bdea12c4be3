// TrainingService's part for traces: a directive to all ranks, and the way of the files back. Files
// are read and written on gRPC's threads, never on the engine's.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "coordinator/core/job_state.h"
#include "coordinator/server/reason.h"
#include "coordinator/server/training_service.h"

namespace muster {
namespace {

// What is said of a trace that is not complete.
void FillState(const TraceStore::Info& info, const JobMachine& job,
               v1::GetTraceResponse* response) {
  response->set_job_iteration(job.iteration());
  if (info.complete()) {
    response->set_state(v1::TRACE_STATE_COMPLETE);
    return;
  }
  response->set_state(v1::TRACE_STATE_FAILED);
  const int missing = info.wanted.world_size - static_cast<int>(info.whole.size());
  if (!info.failure.empty()) {
    response->set_reason(info.failure);
  } else if (job.ended()) {
    response->set_reason(
        absl::StrCat(job.job_id(), " is ", JobStateName(job.state()), " and ", missing, " of ",
                     info.wanted.world_size, " ranks have not sent their part",
                     job.reason().empty() ? "" : absl::StrCat(": ", job.reason())));
  } else if (job.epoch() != info.wanted.epoch) {
    response->set_reason(absl::StrCat("the attempt that was traced (epoch ", info.wanted.epoch,
                                      ") is over: ask again"));
  } else {
    response->set_state(v1::TRACE_STATE_AWAITED);
  }
}

}  // namespace

grpc::ServerUnaryReactor* TrainingServiceImpl::RequestTrace(grpc::CallbackServerContext* context,
                                                            const v1::RequestTraceRequest* request,
                                                            v1::RequestTraceResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.TrainingService/RequestTrace");
  TraceStore::Wanted wanted{.job_id = request->job_id(), .iterations = request->iterations()};
  gate_->Post(call,
              RequestDirective{.job_id = request->job_id(),
                               .reason = ReasonOf(request->reason()),
                               .kind = Directive::Kind::kTrace,
                               .iterations = request->iterations()},
              [this, call, response, wanted](const Outcome& outcome) mutable {
                if (!call->Claim()) return;
                absl::Status status = outcome.status;
                if (const auto* reply = std::get_if<DirectiveReply>(&outcome.reply)) {
                  response->set_directive(reply->number);
                  wanted.directive = reply->number;
                  wanted.epoch = reply->epoch;
                  wanted.world_size = reply->world_size;
                  status = traces_->Expect(wanted);  // one small file
                }
                call->Finish(ToGrpc(status));
              });
  return call.get();
}

grpc::ServerUnaryReactor* TrainingServiceImpl::GetTrace(grpc::CallbackServerContext* context,
                                                        const v1::GetTraceRequest* request,
                                                        v1::GetTraceResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.TrainingService/GetTrace");
  const std::string& job_id = request->job_id();  // the call keeps a copy
  const int64_t directive = request->directive();
  gate_->Read(call, [this, call, response, job_id, directive](const absl::Status& stopped,
                                                              const Coordinator& core, absl::Time) {
    if (!stopped.ok()) return call->Answer(stopped);
    const JobMachine* const job = core.FindJob(job_id);
    if (job == nullptr) {
      call->Answer(absl::NotFoundError(absl::StrCat("job \"", job_id, "\" is not known")));
      return;
    }
    const absl::StatusOr<TraceStore::Info> info = traces_->Find(job_id, directive);
    if (!call->Claim()) return;
    if (info.ok()) {
      response->set_directive(info->wanted.directive);
      response->set_iterations(info->wanted.iterations);
      response->set_world_size(info->wanted.world_size);
      response->set_epoch(info->wanted.epoch);
      response->set_bytes(info->bytes);
      for (const int rank : info->whole) response->add_ranks(rank);
      FillState(*info, *job, response);
    }
    call->Finish(ToGrpc(info.status()));
  });
  return call.get();
}

grpc::ServerUnaryReactor* TrainingServiceImpl::ReadTrace(grpc::CallbackServerContext* context,
                                                         const v1::ReadTraceRequest* request,
                                                         v1::ReadTraceResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.TrainingService/ReadTrace");
  if (!call->Claim()) return call.get();  // refused
  auto part =
      traces_->Read(request->job_id(), request->directive(), request->rank(), request->offset());
  if (part.ok()) {
    response->set_data(std::move(part->data));
    response->set_end(part->end);
  }
  call->Finish(ToGrpc(part.status()));
  return call.get();
}

grpc::ServerUnaryReactor* TrainingServiceImpl::UploadTrace(grpc::CallbackServerContext* context,
                                                           const v1::UploadTraceRequest* request,
                                                           v1::UploadTraceResponse*) {
  const auto call = gate_->Begin(context, "/muster.v1.TrainingService/UploadTrace");
  if (!call->Claim()) return call.get();  // refused
  call->Finish(ToGrpc(traces_->Add({.job_id = request->job_id(),
                                    .directive = request->directive(),
                                    .epoch = request->epoch(),
                                    .rank = request->rank(),
                                    .offset = request->offset(),
                                    .data = request->data(),
                                    .last = request->last()})));
  return call.get();
}

}  // namespace muster
