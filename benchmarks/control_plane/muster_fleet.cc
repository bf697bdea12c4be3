#include "benchmarks/control_plane/muster_fleet.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "benchmarks/control_plane/muster_messages.h"

namespace muster::bench {
namespace {

// One unary call in flight; deletes itself with its answer.
template <class Request, class Response>
struct Unary {
  grpc::ClientContext context;
  Request request;
  Response response;
};

}  // namespace

std::unique_ptr<Fleet> NewMusterFleet(const FleetShape& shape) {
  return std::make_unique<MusterFleet>(shape);
}

MusterFleet::MusterFleet(const FleetShape& shape) : shape_(shape), run_(std::random_device()()) {
  for (int i = 0; i < shape.num_agents(); ++i) {
    auto agent = std::make_unique<Simulated>();
    agent->index = i;
    agent->registration = Registration(i, shape.workers_per_agent, run_);
    agents_.push_back(std::move(agent));
  }
  channels_.resize(agents_.size());
  const auto channel = OwnChannel(shape.address);
  jobs_ = v1::JobService::NewStub(channel);
  training_ = v1::TrainingService::NewStub(channel);
}

nlohmann::json MusterFleet::Run(const std::string& command, const std::vector<double>& numbers) {
  const auto number = [&](size_t i) { return i < numbers.size() ? numbers[i] : 0; };
  if (command == "register") return Register();
  if (command == "open") return OpenStreams();
  if (command == "beat") return Beat(number(0), number(1));
  if (command == "readopt") return Readopt(number(0));
  if (command == "submit") return Submit();
  if (command == "form") return Form();
  if (command == "directives") return Directives(static_cast<int>(number(0)));
  if (command == "steps") return Steps(static_cast<int>(number(0)));
  if (command == "barriers") return Barriers(static_cast<int>(number(0)), /*last_alone=*/false);
  if (command == "releases") return Barriers(static_cast<int>(number(0)), /*last_alone=*/true);
  if (command == "exchange") return Exchange();
  if (command == "kill") return Kill();
  if (command == "lose") return Lose(number(0));
  return nullptr;
}

nlohmann::json MusterFleet::Register() {
  using Call = Unary<v1::RegisterRequest, v1::RegisterResponse>;
  replies_.Expect(shape_.num_agents());
  const double start = Now();
  for (const auto& agent : agents_) {
    channels_[agent->index] = OwnChannel(shape_.address);
    agent->membership = v1::MembershipService::NewStub(channels_[agent->index]);
    agent->rendezvous = v1::RendezvousService::NewStub(channels_[agent->index]);
    auto* call = new Call;
    call->context.set_wait_for_ready(true);
    agent->membership->async()->Register(&call->context, &agent->registration, &call->response,
                                         [this, call](const grpc::Status& status) {
                                           MustBeOk(status, "register");
                                           delete call;
                                           replies_.Arrive();
                                         });
  }
  return Summary(replies_.Wait(start, "registered"));
}

nlohmann::json MusterFleet::OpenStreams() {
  welcomes_.Expect(shape_.num_agents());
  const double start = Now();
  for (const auto& agent : agents_) OpenStream(agent.get());
  return Summary(welcomes_.Wait(start, "streams opened"));
}

void MusterFleet::OpenStream(Simulated* agent) {
  auto stream = Stream::Open(
      [agent](grpc::ClientContext* context, auto* reactor) {
        context->set_wait_for_ready(true);
        agent->membership->async()->Connect(context, reactor);
      },
      [this, agent](const v1::ConnectResponse& message) { OnMessage(agent, message); },
      [this, agent](const grpc::Status& status) { OnStreamEnd(agent, status); });
  stream->Write(HelloOf(agent->registration));
  MutexLock lock(&agent->mu);
  agent->stream = std::move(stream);
}

void MusterFleet::OnStreamEnd(Simulated* agent, const grpc::Status& status) {
  if (!reconnect_) MustBeOk(status, "a stream ended");
  double none = 0;
  first_break_.compare_exchange_strong(none, Now());
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    OpenStream(agent);  // waits for the connection, which the channel tries again with back-off
  } else {
    RegisterAgain(agent);
  }
}

void MusterFleet::RegisterAgain(Simulated* agent) {
  using Call = Unary<v1::RegisterRequest, v1::RegisterResponse>;
  ++num_new_registrations_;
  auto* call = new Call;
  call->context.set_wait_for_ready(true);
  agent->membership->async()->Register(&call->context, &agent->registration, &call->response,
                                       [this, agent, call](const grpc::Status& status) {
                                         MustBeOk(status, "register again");
                                         delete call;
                                         OpenStream(agent);
                                       });
}

nlohmann::json MusterFleet::Readopt(double limit_s) {
  num_new_registrations_ = 0;
  first_break_ = 0;
  reconnect_ = true;
  welcomes_.Expect(shape_.num_agents());
  std::puts("\"ready\"");
  std::fflush(stdout);
  (void)welcomes_.Wait(0, "adopted again", limit_s);
  const double end = Now();
  reconnect_ = false;
  return {{"end", end},
          {"first_break", first_break_.load()},
          {"registered_again", num_new_registrations_.load()}};
}

nlohmann::json MusterFleet::Beat(double interval_s, double window_s) {
  const double start = Now();
  int64_t skipped = 0;
  const int64_t sent = SendPaced(shape_.num_agents(), interval_s, window_s, [&](int i) {
    Simulated& agent = *agents_[i];
    MutexLock lock(&agent.mu);
    if (agent.stream->idle()) {
      agent.stream->Write(HeartbeatOf(++agent.heartbeats));
    } else {
      ++skipped;  // the one before has not gone out
    }
  });
  return {{"messages", sent - skipped}, {"skipped", skipped}, {"seconds", Now() - start}};
}

void MusterFleet::OnMessage(Simulated* agent, const v1::ConnectResponse& message) {
  switch (message.message_case()) {
    case v1::ConnectResponse::kWelcome: {
      MutexLock lock(&agent->mu);
      if (agent->stream != nullptr) {
        for (const v1::ReportBatch& batch : agent->unacknowledged) {
          if (batch.sequence() <= message.welcome().reports_through()) continue;
          v1::ConnectRequest request;
          *request.mutable_reports() = batch;
          agent->stream->Write(std::move(request));
        }
      }
      welcomes_.Arrive();
      return;
    }
    case v1::ConnectResponse::kLaunch: {
      MutexLock lock(&agent->mu);
      agent->assignments.clear();
      agent->launched_at = Now();
      for (const v1::Assignment& assignment : message.launch().assignments()) {
        v1::AssignmentRef ref;
        ref.set_worker(assignment.worker());
        ref.set_job_id(message.launch().job_id());
        ref.set_epoch(message.launch().epoch());
        ref.set_rank(assignment.rank());
        agent->assignments.push_back(std::move(ref));
      }
      launches_.Arrive();
      return;
    }
    case v1::ConnectResponse::kUniqueId:
      unique_ids_.Arrive();
      return;
    case v1::ConnectResponse::kDirective:
      directives_.Arrive();
      return;
    case v1::ConnectResponse::kStop: {
      v1::AssignmentRef ref;
      ref.set_worker(message.stop().worker());
      ref.set_job_id(message.stop().job_id());
      ref.set_epoch(message.stop().epoch());
      {
        MutexLock lock(&agent->mu);
        for (const v1::AssignmentRef& held : agent->assignments) {
          if (held.worker() == ref.worker()) ref.set_rank(held.rank());
        }
      }
      v1::TrainerReport report = ReportOf(ref);
      report.mutable_exited()->set_exit_code(0);
      Send(agent, {std::move(report)}, /*awaited=*/false);
      exits_.Arrive();
      return;
    }
    case v1::ConnectResponse::kAck: {
      MutexLock lock(&agent->mu);
      const int64_t through = message.ack().through();
      std::erase_if(agent->unacknowledged,
                    [&](const v1::ReportBatch& batch) { return batch.sequence() <= through; });
      if (agent->awaited == 0 || through < agent->awaited) return;
      agent->awaited = 0;
      acks_.Arrive();
      return;
    }
    case v1::ConnectResponse::kProbe:
      return AnswerProbe(agent, message.probe());
    case v1::ConnectResponse::kForgetJob:
    case v1::ConnectResponse::kAbort:
    case v1::ConnectResponse::MESSAGE_NOT_SET:
      return;
  }
}

}  // namespace muster::bench
