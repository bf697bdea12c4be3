// Simulated agents of a real coordinator: each registers, holds a stream, beats, and answers for
// its trainers as they would. Agents in nodes of 8 share one connection and one stream, as real
// ones do.
//
// Everything that is measured is started from the commands' one thread and ends in a Gathering;
// gRPC's threads run the reactions.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/control_plane/fleet.h"
#include "benchmarks/control_plane/gathering.h"
#include "benchmarks/control_plane/stream_call.h"
#include "muster/v1/job.grpc.pb.h"
#include "muster/v1/membership.grpc.pb.h"
#include "muster/v1/rendezvous.grpc.pb.h"
#include "muster/v1/training.grpc.pb.h"

namespace muster::bench {

class MusterFleet final : public Fleet {
 public:
  explicit MusterFleet(const FleetShape& shape);
  nlohmann::json Run(const std::string& command, const std::vector<double>& numbers) override;

 private:
  using Stream = StreamCall<v1::ConnectRequest, v1::ConnectResponse>;

  struct Simulated {  // one agent
    int index = 0;
    v1::RegisterRequest registration;
    std::unique_ptr<v1::MembershipService::Stub> membership;
    std::unique_ptr<v1::RendezvousService::Stub> rendezvous;
    Mutex mu;
    std::shared_ptr<Stream> stream ABSL_GUARDED_BY(mu);
    int64_t heartbeats ABSL_GUARDED_BY(mu) = 0;
    int64_t batches ABSL_GUARDED_BY(mu) = 0;  // sent
    int64_t awaited ABSL_GUARDED_BY(mu) = 0;  // batch whose acknowledgement is an arrival; 0: none
    std::vector<v1::ReportBatch> unacknowledged ABSL_GUARDED_BY(mu);
    std::vector<v1::AssignmentRef> assignments ABSL_GUARDED_BY(mu);
    double launched_at ABSL_GUARDED_BY(mu) = 0;  // Now() of the last Launch
  };

  // ---- membership: muster_fleet.cc
  nlohmann::json Register();
  nlohmann::json OpenStreams();
  nlohmann::json Beat(double interval_s, double window_s);
  // Waits until every stream was broken and opened again, by the same incarnation or a new one.
  nlohmann::json Readopt(double limit_s);
  void OpenStream(Simulated* agent);
  void OnMessage(Simulated* agent, const v1::ConnectResponse& message);
  void OnStreamEnd(Simulated* agent, const grpc::Status& status);
  void RegisterAgain(Simulated* agent);

  // ---- trainers: muster_trainers.cc
  nlohmann::json Submit();
  // All ranks report loading; rank 0 its unique ID, which reaches all; all report training.
  nlohmann::json Form();
  nlohmann::json Directives(int count);
  nlohmann::json Steps(int count);
  nlohmann::json Barriers(int count, bool last_alone);
  nlohmann::json Exchange();
  nlohmann::json Kill();
  // What the agents hold of the job's newest epoch, for what is sent from now on.
  void TakeAssignments();
  v1::TrainerReport ReportOf(const v1::AssignmentRef& from) const;
  // `awaited`: its acknowledgement arrives at acks_.
  void Send(Simulated* agent, std::vector<v1::TrainerReport> reports, bool awaited);
  std::vector<double> PhaseOfAll(const std::string& phase);
  Simulated* AgentOfRank(int rank);
  void SetKey(int rank, const std::string& key, std::function<void()> done);
  void WaitPrefix(int rank, const std::string& prefix, int count, std::function<void()> done);

  // ---- faults: muster_losses.cc
  nlohmann::json Lose(double share);
  nlohmann::json AwaitAssignments(int64_t before, double start);
  void AnswerProbe(Simulated* agent, const v1::Probe& probe);

  const FleetShape shape_;
  const int64_t run_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<Simulated>> agents_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::TrainingService::Stub> training_;

  Gathering replies_, welcomes_, launches_, unique_ids_, directives_, acks_, exits_;
  std::atomic<bool> reconnect_ = false;
  std::atomic<int> num_new_registrations_ = 0;
  std::atomic<double> first_break_ = 0;
  // Of the job that is there now; set while nothing is under way.
  std::string job_id_;
  int64_t epoch_ = 0;
  std::vector<int> agent_of_rank_;
  std::atomic<int64_t> iteration_ = 0;
  int64_t directive_ = 0, barrier_ = 0;
};

}  // namespace muster::bench
