// What the trainers of the simulated agents do, and the people who run jobs on them.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/control_plane/muster_fleet.h"
#include "benchmarks/control_plane/muster_messages.h"

namespace muster::bench {
namespace {

constexpr auto kSettle = std::chrono::milliseconds(100);  // until those who wait are all in

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
}

nlohmann::json Sorted(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Summary(values);
}

}  // namespace

v1::TrainerReport MusterFleet::ReportOf(const v1::AssignmentRef& from) const {
  v1::TrainerReport report;
  report.set_worker(from.worker());
  report.set_job_id(from.job_id());
  report.set_epoch(from.epoch());
  report.set_rank(from.rank());
  return report;
}

void MusterFleet::Send(Simulated* agent, std::vector<v1::TrainerReport> reports, bool awaited) {
  v1::ConnectRequest request;
  v1::ReportBatch* batch = request.mutable_reports();
  for (v1::TrainerReport& report : reports) *batch->add_reports() = std::move(report);
  MutexLock lock(&agent->mu);
  batch->set_sequence(++agent->batches);
  if (awaited) agent->awaited = agent->batches;
  agent->unacknowledged.push_back(*batch);
  agent->stream->Write(std::move(request));
}

std::vector<double> MusterFleet::PhaseOfAll(const std::string& phase) {
  acks_.Expect(shape_.num_agents());
  const double start = Now();
  for (const auto& agent : agents_) {
    std::vector<v1::TrainerReport> reports;
    {
      MutexLock lock(&agent->mu);
      for (const v1::AssignmentRef& held : agent->assignments) {
        reports.push_back(ReportOf(held));
        reports.back().mutable_phase()->set_phase(phase);
      }
    }
    Send(agent.get(), std::move(reports), /*awaited=*/true);
  }
  return acks_.Wait(start, "acknowledged");
}

nlohmann::json MusterFleet::Submit() {
  v1::SubmitJobRequest request;
  v1::SubmitJobResponse response;
  request.set_spec_json(SpecOf(shape_.num_workers));
  grpc::ClientContext context;
  SetDeadline(&context);
  launches_.Expect(shape_.num_agents());
  const double start = Now();
  MustBeOk(jobs_->SubmitJob(&context, request, &response), "submit");
  const double answered = Now() - start;
  if (response.job_id().empty()) {
    std::fprintf(stderr, "the spec was refused: %s\n", response.ShortDebugString().c_str());
    std::_Exit(1);
  }
  job_id_ = response.job_id();
  nlohmann::json result = Summary(launches_.Wait(start, "assigned"));
  TakeAssignments();
  iteration_ = 0;
  directive_ = 0;
  result["answered"] = answered;
  result["job_id"] = job_id_;
  return result;
}

void MusterFleet::TakeAssignments() {
  agent_of_rank_.assign(shape_.num_workers, 0);
  for (const auto& agent : agents_) {
    MutexLock lock(&agent->mu);
    for (const v1::AssignmentRef& held : agent->assignments) {
      agent_of_rank_.at(held.rank()) = agent->index;
      epoch_ = held.epoch();
    }
  }
}

nlohmann::json MusterFleet::Form() {
  nlohmann::json result;
  result["phases"] = Summary(PhaseOfAll("loading"));
  Simulated* first = AgentOfRank(0);
  v1::AssignmentRef of_first;
  {
    MutexLock lock(&first->mu);
    for (const v1::AssignmentRef& held : first->assignments) {
      if (held.rank() == 0) of_first = held;
    }
  }
  v1::TrainerReport report = ReportOf(of_first);
  report.mutable_unique_id()->set_id(std::string(256, 'a'));  // as long as NCCL's, in hex
  unique_ids_.Expect(shape_.num_agents());
  const double start = Now();
  Send(first, {std::move(report)}, /*awaited=*/false);
  result["unique_id"] = Summary(unique_ids_.Wait(start, "unique ID"));
  if (iteration_ > 0) {  // after a loss: the survivors' state is there
    (void)PhaseOfAll("restoring");
    v1::TrainerReport restored = ReportOf(of_first);
    restored.mutable_restored()->set_iteration(iteration_);
    restored.mutable_restored()->set_source("live");
    Send(first, {std::move(restored)}, /*awaited=*/false);
  }
  (void)PhaseOfAll("training");
  (void)Steps(1);
  return result;
}

MusterFleet::Simulated* MusterFleet::AgentOfRank(int rank) {
  return agents_[agent_of_rank_[rank]].get();
}

// Rank 0 reports committed steps, each acknowledged before the next.
nlohmann::json MusterFleet::Steps(int count) {
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    Simulated* first = AgentOfRank(0);
    v1::TrainerReport report;
    {
      MutexLock lock(&first->mu);
      for (const v1::AssignmentRef& held : first->assignments) {
        if (held.rank() == 0) report = ReportOf(held);
      }
    }
    v1::StepReport* step = report.mutable_step();
    step->set_iteration(++iteration_);
    step->set_consumed_samples(iteration_ * shape_.num_workers);
    step->set_lm_loss(5.5);
    step->set_grad_norm(1.0);
    step->set_learning_rate(0.001);
    step->set_elapsed_ms(100);
    step->set_applied_directive(directive_);
    acks_.Expect(1);
    const double start = Now();
    Send(first, {std::move(report)}, /*awaited=*/true);
    seconds.push_back(acks_.Wait(start, "step acknowledged").back());
  }
  return Sorted(std::move(seconds));
}

// From the request to the last agent that holds the directive, and on to the acknowledgement of the
// step report that says it was applied.
nlohmann::json MusterFleet::Directives(int count) {
  std::vector<double> reached, applied;
  for (int i = 0; i < count; ++i) {
    v1::RequestEvaluationRequest request;
    v1::RequestEvaluationResponse response;
    request.set_job_id(job_id_);
    grpc::ClientContext context;
    SetDeadline(&context);
    directives_.Expect(shape_.num_agents());
    const double start = Now();
    MustBeOk(training_->RequestEvaluation(&context, request, &response), "directive");
    reached.push_back(directives_.Wait(start, "directive").back());
    directive_ = response.directive();
    (void)Steps(1);
    applied.push_back(Now() - start);
  }
  return {{"reached", Sorted(std::move(reached))}, {"applied", Sorted(std::move(applied))}};
}

void MusterFleet::SetKey(int rank, const std::string& key, std::function<void()> done) {
  struct Call {
    grpc::ClientContext context;
    v1::SetKeyRequest request;
    v1::SetKeyResponse response;
  };
  auto* call = new Call;
  SetDeadline(&call->context);
  call->request.set_job_id(job_id_);
  call->request.set_epoch(epoch_);
  call->request.set_key(key);
  call->request.set_value("1");
  AgentOfRank(rank)->rendezvous->async()->SetKey(
      &call->context, &call->request, &call->response,
      [call, done = std::move(done)](const grpc::Status& status) {
        MustBeOk(status, "set key");
        delete call;
        done();
      });
}

void MusterFleet::WaitPrefix(int rank, const std::string& prefix, int count,
                             std::function<void()> done) {
  struct Call {
    grpc::ClientContext context;
    v1::WaitPrefixRequest request;
    v1::WaitPrefixResponse response;
  };
  auto* call = new Call;
  SetDeadline(&call->context);
  call->request.set_job_id(job_id_);
  call->request.set_epoch(epoch_);
  call->request.set_prefix(prefix);
  call->request.set_count(count);
  call->request.mutable_limit()->set_seconds(60);
  AgentOfRank(rank)->rendezvous->async()->WaitPrefix(
      &call->context, &call->request, &call->response,
      [call, done = std::move(done)](const grpc::Status& status) {
        MustBeOk(status, "wait for keys");
        delete call;
        done();
      });
}

// Every rank says that it is here and waits for the word; rank 0 also waits for all and gives it.
// `last_alone`: all but the last rank are waiting when the time starts.
nlohmann::json MusterFleet::Barriers(int count, bool last_alone) {
  std::vector<double> halves, alls;
  for (int i = 0; i < count; ++i) {
    const int world = shape_.num_workers;
    const std::string in = absl::StrCat("barrier", ++barrier_, "/in/"),
                      go = absl::StrCat("barrier", barrier_, "/go");
    Gathering set;
    set.Expect(world - 1);
    replies_.Expect(world);
    const auto enter = [&, this](int rank) {
      SetKey(rank, absl::StrFormat("%s%05d", in, rank), [this, rank, go, &set] {
        set.Arrive();
        WaitPrefix(rank, go, 1, [this] { replies_.Arrive(); });
      });
    };
    double start = Now();
    WaitPrefix(0, in, world, [this, go] { SetKey(0, go, [] {}); });
    for (int rank = 0; rank < world - 1; ++rank) enter(rank);
    if (last_alone) {
      (void)set.Wait(start, "waiting in the barrier");
      std::this_thread::sleep_for(kSettle);
      start = Now();
    }
    enter(world - 1);
    const std::vector<double> out = replies_.Wait(start, "out of the barrier");
    halves.push_back(out[out.size() / 2]);
    alls.push_back(out.back());
    std::this_thread::sleep_for(
        kSettle);  // the answers to this barrier are not the next one's load
  }
  return {{"half", Sorted(std::move(halves))}, {"all", Sorted(std::move(alls))}};
}

// Every rank sets a key and reads those of all: what forming a group over gloo costs.
nlohmann::json MusterFleet::Exchange() {
  const int world = shape_.num_workers;
  const std::string prefix = absl::StrCat("exchange", ++barrier_, "/");
  replies_.Expect(world);
  const double start = Now();
  for (int rank = 0; rank < world; ++rank) {
    SetKey(rank, absl::StrFormat("%s%05d", prefix, rank), [this, rank, prefix, world] {
      WaitPrefix(rank, prefix, world, [this] { replies_.Arrive(); });
    });
  }
  return Summary(replies_.Wait(start, "exchanged"));
}

// From the cancel to the last StopTrainer; then waits until the job's workers are idle again.
nlohmann::json MusterFleet::Kill() {
  v1::CancelJobRequest request;
  v1::CancelJobResponse response;
  request.set_job_id(job_id_);
  request.set_mode(v1::CANCEL_MODE_KILL);
  request.set_reason("benchmark");
  grpc::ClientContext context;
  SetDeadline(&context);
  exits_.Expect(shape_.num_workers);
  const double start = Now();
  MustBeOk(jobs_->CancelJob(&context, request, &response), "cancel");
  nlohmann::json result = Summary(exits_.Wait(start, "stopped"));
  for (;;) {
    v1::GetJobRequest get;
    v1::GetJobResponse job;
    get.set_job_id(job_id_);
    get.set_known_version(1'000'000'000);
    grpc::ClientContext get_context;
    SetDeadline(&get_context);
    MustBeOk(jobs_->GetJob(&get_context, get, &job), "get job");
    if (job.job().workers_released()) break;
    if (Now() - start > 60) {
      std::fprintf(stderr, "workers were not released within 60 s\n");
      std::_Exit(1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  result["released"] = Now() - start;
  return result;
}

}  // namespace muster::bench
