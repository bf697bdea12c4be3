#include "coordinator/server/membership_service.h"

#include <algorithm>

#include "common/rpc/address.h"
#include "common/rpc/convert.h"
#include "common/runtime/log.h"
#include "common/topology/placement.h"
#include "coordinator/core/drain_text.h"
#include "coordinator/server/agent_convert.h"

namespace muster {
namespace {

v1::WorkerStatus StatusOf(const Coordinator& core, const Worker& worker, absl::Time now) {
  v1::WorkerStatus status = ToProto(worker, *core.membership().AgentOf(worker.info.name), now);
  if (!status.reason().empty() || !worker.assignment.has_value()) return status;
  const JobMachine* job = core.FindJob(worker.assignment->job_id);
  if (job != nullptr) status.set_reason(DrainText(*job, worker));
  return status;
}

// The worker, or all of the node. None that is known by its hold only.
std::vector<v1::WorkerStatus> Named(const Coordinator& core, const std::string& name,
                                    absl::Time now) {
  const Membership& members = core.membership();
  std::vector<v1::WorkerStatus> found;
  const auto names = members.WorkersNamed(name);
  for (const std::string& worker : names.ok() ? *names : std::vector<std::string>{}) {
    const Worker* entry = members.FindWorker(worker);
    if (entry != nullptr) found.push_back(StatusOf(core, *entry, now));
  }
  return found;
}

}  // namespace

grpc::ServerUnaryReactor* MembershipServiceImpl::Register(grpc::CallbackServerContext* context,
                                                          const v1::RegisterRequest* request,
                                                          v1::RegisterResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.MembershipService/Register");
  const std::string observed = PeerHost(context->peer());
  auto agent = FromProto(*request, observed);
  if (!agent.ok()) {
    call->Answer(agent.status());
    return call.get();
  }
  const std::string who = request->node();
  gate_->Post(
      call, *std::move(agent), [this, call, response, observed, who](const Outcome& outcome) {
        if (outcome.status.ok()) {
          MUSTER_LOG(kInfo) << "agent registered node=" << who << " address=" << observed;
        } else {
          MUSTER_LOG(kWarning) << "agent refused node=" << who << " address=" << observed
                               << " reason=\"" << std::string(outcome.status.message()) << "\"";
        }
        if (!call->Claim()) return;
        if (const auto* reply = std::get_if<RegisterReply>(&outcome.reply)) {
          *response->mutable_workers() = {reply->workers.begin(), reply->workers.end()};
          *response->mutable_heartbeat_interval() = ToProto(reply->heartbeat_interval);
          *response->mutable_heartbeat_timeout() = ToProto(reply->heartbeat_timeout);
          response->set_observed_address(observed);
          response->set_coordinator_id(coordinator_id_);
        }
        call->Finish(ToGrpc(outcome.status));
      });
  return call.get();
}

grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>* MembershipServiceImpl::Connect(
    grpc::CallbackServerContext* context) {
  return streams_->Open(context->peer());
}

grpc::ServerUnaryReactor* MembershipServiceImpl::DrainWorker(grpc::CallbackServerContext* context,
                                                             const v1::DrainWorkerRequest* request,
                                                             v1::DrainWorkerResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.MembershipService/DrainWorker");
  const std::string& name = request->worker();
  gate_->Post(call, muster::DrainWorker{.worker = name, .undo = request->undo()},
              [this, call, response, name](const Outcome& outcome) {
                if (!outcome.status.ok()) return call->Answer(outcome.status);
                gate_->Read(call, [call, response, name](const absl::Status& status,
                                                         const Coordinator& core, absl::Time now) {
                  if (!call->Claim()) return;
                  for (v1::WorkerStatus& worker : Named(core, name, now)) {
                    if (!response->has_worker()) *response->mutable_worker() = worker;
                    *response->add_workers() = std::move(worker);
                  }
                  call->Finish(ToGrpc(status));
                });
              });
  return call.get();
}

grpc::ServerUnaryReactor* MembershipServiceImpl::CordonWorker(
    grpc::CallbackServerContext* context, const v1::CordonWorkerRequest* request,
    v1::CordonWorkerResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.MembershipService/CordonWorker");
  const std::string& name = request->worker();
  gate_->Post(call, muster::CordonWorker{.worker = name, .undo = request->undo()},
              [this, call, response, name](const Outcome& outcome) {
                if (!outcome.status.ok()) return call->Answer(outcome.status);
                gate_->Read(call, [call, response, name](const absl::Status& status,
                                                         const Coordinator& core, absl::Time now) {
                  if (!call->Claim()) return;
                  for (v1::WorkerStatus& worker : Named(core, name, now)) {
                    *response->add_workers() = std::move(worker);
                  }
                  call->Finish(ToGrpc(status));
                });
              });
  return call.get();
}

grpc::ServerUnaryReactor* MembershipServiceImpl::ListWorkers(grpc::CallbackServerContext* context,
                                                             const v1::ListWorkersRequest* request,
                                                             v1::ListWorkersResponse* response) {
  const auto call = gate_->Begin(context, "/muster.v1.MembershipService/ListWorkers");
  gate_->Read(
      call, [call, response](const absl::Status& status, const Coordinator& core, absl::Time now) {
        if (!call->Claim()) return;
        for (const auto& [name, worker] : core.membership().workers()) {
          *response->add_workers() = StatusOf(core, worker, now);
        }
        std::sort(response->mutable_workers()->pointer_begin(),
                  response->mutable_workers()->pointer_end(),
                  [](const v1::WorkerStatus* a, const v1::WorkerStatus* b) {
                    return NaturalLess(a->description().name(), b->description().name());
                  });
        call->Finish(ToGrpc(status));
      });
  return call.get();
}

}  // namespace muster
