#include "coordinator/server/job_service.h"

#include "common/rpc/convert.h"
#include "common/runtime/log.h"
#include "coordinator/server/job_convert.h"
#include "coordinator/server/reason.h"
#include "coordinator/server/watch.h"

namespace muster {
namespace {

CancelMode FromProto(v1::CancelMode mode) {
  switch (mode) {
    case v1::CANCEL_MODE_CHECKPOINT_AND_STOP:
      return CancelMode::kCheckpointAndStop;
    case v1::CANCEL_MODE_KILL:
      return CancelMode::kKill;
    default:  // unspecified, stop, or one of a newer client
      return CancelMode::kStop;
  }
}

}  // namespace

grpc::ServerUnaryReactor* JobServiceImpl::SubmitJob(grpc::CallbackServerContext* context,
                                                    const v1::SubmitJobRequest* request,
                                                    v1::SubmitJobResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.JobService/SubmitJob");
  gate_->Post(call,
              muster::SubmitJob{.spec_json = request->spec_json(),
                                .idempotency_key = request->idempotency_key()},
              [call, response](const Outcome& outcome) {
                if (!call->Claim()) return;
                if (const auto* reply = std::get_if<SubmitReply>(&outcome.reply)) {
                  response->set_job_id(reply->job_id);
                  for (const SpecProblem& problem : reply->problems) {
                    v1::SpecProblem* to = response->add_problems();
                    to->set_field(problem.field);
                    to->set_value(problem.value);
                    to->set_message(problem.message);
                  }
                  if (!reply->job_id.empty()) {
                    MUSTER_LOG(kInfo) << "job submitted job=" << reply->job_id;
                  }
                }
                call->Finish(ToGrpc(outcome.status));
              });
  return call.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::CancelJob(grpc::CallbackServerContext* context,
                                                    const v1::CancelJobRequest* request,
                                                    v1::CancelJobResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.JobService/CancelJob");
  const std::string& job_id = request->job_id();
  gate_->Post(call,
              muster::CancelJob{.job_id = job_id,
                                .reason = ReasonOf(request->reason()),
                                .mode = FromProto(request->mode())},
              [this, call, response, job_id](const Outcome& outcome) {
                if (!outcome.status.ok()) {
                  call->Answer(outcome.status);
                  return;
                }
                WatchJobAndCore(
                    gate_, call, job_id, absl::ZeroDuration(),
                    [](const JobMachine&) { return true; },
                    [response](const JobMachine& job, const Coordinator& core) {
                      *response->mutable_job() = ToProto(job, JobDetail::kFull, core.Signs());
                      return absl::OkStatus();
                    });
              });
  return call.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::ListJobs(grpc::CallbackServerContext* context,
                                                   const v1::ListJobsRequest* request,
                                                   v1::ListJobsResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.JobService/ListJobs");
  gate_->Read(
      call, [call, response](const absl::Status& status, const Coordinator& core, absl::Time now) {
        if (!call->Claim()) return;
        for (const auto& [sequence, job] : core.jobs()) {
          *response->add_jobs() = ToProto(*job, JobDetail::kSummary, core.Signs());
        }
        if (!core.storage().writable) response->set_storage_trouble(core.storage().reason);
        call->Finish(ToGrpc(status));
      });
  return call.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::GetJob(grpc::CallbackServerContext* context,
                                                 const v1::GetJobRequest* request,
                                                 v1::GetJobResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.JobService/GetJob", CallGate::Kind::kMayWait);
  const int64_t known = request->known_version();
  WatchJobAndCore(
      gate_, call, request->job_id(), muster::FromProto(request->wait()),
      [known](const JobMachine& job) { return job.version() > known; },
      [known, response](const JobMachine& job, const Coordinator& core) {
        *response->mutable_job() = ToProto(job, JobDetail::kFull, core.Signs());
        FillHeldBack(job, core.membership(), response->mutable_job());
        if (known == 0) response->set_spec_json(job.identity().spec_json);
        if (!core.storage().writable) response->set_storage_trouble(core.storage().reason);
        return absl::OkStatus();
      });
  return call.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::GetTopology(grpc::CallbackServerContext* context,
                                                      const v1::GetTopologyRequest* request,
                                                      v1::GetTopologyResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.JobService/GetTopology");
  WatchJob(
      gate_, call, request->job_id(), absl::ZeroDuration(), [](const JobMachine&) { return true; },
      [response](const JobMachine& job) {
        FillTopology(job, response);
        return absl::OkStatus();
      });
  return call.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::ReplaceRank(grpc::CallbackServerContext* context,
                                                      const v1::ReplaceRankRequest* request,
                                                      v1::ReplaceRankResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.JobService/ReplaceRank");
  gate_->Post(call,
              muster::ReplaceRank{.job_id = request->job_id(),
                                  .reason = ReasonOf(request->reason()),
                                  .rank = request->rank(),
                                  .worker = request->worker()},
              [call, response](const Outcome& outcome) {
                if (!call->Claim()) return;
                if (const auto* reply = std::get_if<ReplaceReply>(&outcome.reply)) {
                  response->set_from(reply->from);
                  response->set_to(reply->to);
                }
                call->Finish(ToGrpc(outcome.status));
              });
  return call.get();
}

grpc::ServerUnaryReactor* JobServiceImpl::ReadLogs(grpc::CallbackServerContext* context,
                                                   const v1::ReadLogsRequest* request,
                                                   v1::ReadLogsResponse* response) {
  const auto call =
      gate_->Begin(context, "/muster.v1.JobService/ReadLogs", CallGate::Kind::kMayWait);
  const int rank = request->has_rank() ? request->rank() : -1;
  const bool bad_rank = request->has_rank() && rank < 0;
  const int64_t since = request->since();
  const size_t limit = PageSize(request->limit());
  WatchJob(
      gate_, call, request->job_id(), muster::FromProto(request->wait()),
      [=](const JobMachine& job) {
        return bad_rank || rank >= job.world_size() || job.released() ||
               !job.history().Logs(rank, since, 1).empty();
      },
      [=](const JobMachine& job) -> absl::Status {
        if (bad_rank || rank >= job.world_size()) {
          return absl::NotFoundError(absl::StrCat(job.job_id(), " has no rank ", rank, "; it has ",
                                                  job.world_size(), " ranks, from 0 on"));
        }
        response->set_next(std::max(since, job.history().next_log_index()));
        for (const auto* entry : job.history().Logs(rank, since, limit)) {
          *response->add_lines() = ToProto(*entry);
        }
        if (response->lines_size() == static_cast<int>(limit)) {
          response->set_next(response->lines(response->lines_size() - 1).index() + 1);
        }
        response->set_job_ended(job.released());
        response->set_oldest(job.history().oldest_log_index(rank));
        return absl::OkStatus();
      });
  return call.get();
}

}  // namespace muster
