// A coordinator by script, over real gRPC: it knows incarnations and numbers of reports, keeps what
// agents send, goes away and comes back on its port, with or without its memory.
#pragma once

#include <grpcpp/support/status.h>
#include <grpcpp/support/sync_stream.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/rpc/convert.h"
#include "common/runtime/mutex.h"
#include "muster/v1/membership.grpc.pb.h"
#include "muster/v1/rendezvous.grpc.pb.h"
#include "tests/support/loopback_server.h"

namespace muster {

// Thread-safe.
class FakeCoordinator {
 public:
  struct Agent {
    int64_t reports_through = 0;
    std::vector<v1::TrainerReport> reports;     // in order
    std::vector<v1::TrainerProgress> progress;  // of the last heartbeat that had some
    std::vector<v1::AssignmentRef> running;
    int streams = 0, heartbeats = 0, gaps = 0;
    std::string goodbye, after_goodbye;
  };

  FakeCoordinator() { Start(); }
  ~FakeCoordinator() { Stop(); }

  void Start() {
    {
      MutexLock lock(&mu_);
      up_ = true;
    }
    server_.Start({&membership_, &rendezvous_});
  }
  // As a kill: every call ends at once.
  void Stop() {
    {
      MutexLock lock(&mu_);
      up_ = false;
      changed_.NotifyAll();
    }
    server_.Stop();
  }
  std::string address() const { return server_.address(); }

  // The script's view, under the lock.
  template <typename Function>
  auto With(Function function) {
    MutexLock lock(&mu_);
    return function(agents_);
  }
  // False when it did not hold within 30 s.
  bool Await(const std::function<bool(std::map<std::string, Agent>&)>& condition) {
    const absl::Time until = absl::Now() + absl::Seconds(30);
    MutexLock lock(&mu_);
    while (!condition(agents_)) {
      if (absl::Now() >= until) return false;
      changed_.WaitFor(&mu_, until - absl::Now());
    }
    return true;
  }
  // What the next Register calls are answered, first to last; then they succeed.
  void RefuseRegistrations(std::vector<grpc::Status> answers) {
    MutexLock lock(&mu_);
    refusals_ = std::move(answers);
  }
  size_t refusals_left() {
    MutexLock lock(&mu_);
    return refusals_.size();
  }
  // To every agent that is connected, and to those that connect later.
  void Order(v1::ConnectResponse order) {
    MutexLock lock(&mu_);
    for (const v1::Assignment& a : order.launch().assignments()) {
      for (auto& [incarnation, agent] : agents_) {
        v1::AssignmentRef* ref = &agent.running.emplace_back();
        ref->set_worker(a.worker());
        ref->set_job_id(order.launch().job_id());
        ref->set_epoch(order.launch().epoch());
      }
    }
    orders_.push_back(std::move(order));
    changed_.NotifyAll();
  }
  // This incarnation's work was given to others.
  void GiveUp(const std::string& incarnation) {
    MutexLock lock(&mu_);
    given_up_[incarnation] = true;
    changed_.NotifyAll();
  }
  void SetKey(const std::string& key, const std::string& value) {
    MutexLock lock(&mu_);
    keys_[key] = value;
    changed_.NotifyAll();
  }
  std::string Key(const std::string& key) {
    MutexLock lock(&mu_);
    return keys_.contains(key) ? keys_[key] : "";
  }

 private:
  using Stream = grpc::ServerReaderWriter<v1::ConnectResponse, v1::ConnectRequest>;

  class Membership final : public v1::MembershipService::Service {
   public:
    explicit Membership(FakeCoordinator* fake) : fake_(fake) {}
    grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                          v1::RegisterResponse* response) override {
      return fake_->DoRegister(*request, response);
    }
    grpc::Status Connect(grpc::ServerContext* context, Stream* stream) override {
      return fake_->DoConnect(context, stream);
    }

   private:
    FakeCoordinator* const fake_;
  };
  class Rendezvous final : public v1::RendezvousService::Service {
   public:
    explicit Rendezvous(FakeCoordinator* fake) : fake_(fake) {}
    grpc::Status SetKey(grpc::ServerContext*, const v1::SetKeyRequest* request,
                        v1::SetKeyResponse*) override {
      fake_->SetKey(request->key(), request->value());
      return grpc::Status::OK;
    }
    grpc::Status WaitPrefix(grpc::ServerContext*, const v1::WaitPrefixRequest* request,
                            v1::WaitPrefixResponse* response) override {
      return fake_->DoWaitPrefix(*request, response);
    }

   private:
    FakeCoordinator* const fake_;
  };

  grpc::Status DoRegister(const v1::RegisterRequest& request, v1::RegisterResponse* response) {
    MutexLock lock(&mu_);
    changed_.NotifyAll();
    if (!refusals_.empty()) {
      const grpc::Status answer = refusals_.front();
      refusals_.erase(refusals_.begin());
      return answer;
    }
    if (given_up_[request.incarnation()]) return {grpc::StatusCode::ABORTED, "it was given up"};
    agents_[request.incarnation()];
    *response->mutable_heartbeat_interval() = ToProto(absl::Milliseconds(20));
    return grpc::Status::OK;
  }

  grpc::Status DoConnect(grpc::ServerContext* context, Stream* stream) {
    v1::ConnectRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    const std::string incarnation = request.hello().incarnation();
    v1::ConnectResponse welcome;
    size_t sent = 0;
    {
      MutexLock lock(&mu_);
      if (given_up_[incarnation] || !agents_.contains(incarnation)) {
        return {grpc::StatusCode::ABORTED, "unknown or over"};
      }
      Agent& agent = agents_[incarnation];
      ++agent.streams;
      welcome.mutable_welcome()->set_reports_through(agent.reports_through);
      for (const auto& ref : agent.running) *welcome.mutable_welcome()->add_running() = ref;
      changed_.NotifyAll();
    }
    Mutex write_mu;
    stream->Write(welcome);
    bool over = false;
    std::thread writer([&] {
      MutexLock lock(&mu_);
      while (!over && up_) {
        if (given_up_[incarnation]) {
          context->TryCancel();
          return;
        }
        if (sent == orders_.size()) {
          changed_.Wait(&mu_);
          continue;
        }
        const v1::ConnectResponse order = orders_[sent++];
        mu_.Unlock();
        {
          MutexLock write_lock(&write_mu);
          stream->Write(order);
        }
        mu_.Lock();
      }
    });
    while (stream->Read(&request)) {
      const int64_t ack = Take(incarnation, request);
      if (request.has_goodbye()) break;
      if (ack == 0) continue;
      v1::ConnectResponse response;
      response.mutable_ack()->set_through(ack);
      MutexLock write_lock(&write_mu);
      stream->Write(response);
    }
    {
      MutexLock lock(&mu_);
      over = true;
      changed_.NotifyAll();
    }
    writer.join();
    return grpc::Status::OK;
  }

  // The number to acknowledge, or 0.
  int64_t Take(const std::string& incarnation, const v1::ConnectRequest& request) {
    MutexLock lock(&mu_);
    Agent& agent = agents_[incarnation];
    changed_.NotifyAll();
    if (!agent.goodbye.empty()) agent.after_goodbye = request.ShortDebugString();
    if (request.has_goodbye()) agent.goodbye = request.goodbye().reason();
    if (request.has_heartbeat()) {
      ++agent.heartbeats;
      if (request.heartbeat().progress_size() > 0) {
        agent.progress = {request.heartbeat().progress().begin(),
                          request.heartbeat().progress().end()};
      }
    }
    // Dead already: what a killed coordinator reads it neither keeps nor acknowledges.
    if (!request.has_reports() || !up_) return 0;
    const v1::ReportBatch& batch = request.reports();
    if (batch.sequence() > agent.reports_through + 1) ++agent.gaps;
    if (batch.sequence() == agent.reports_through + 1) {
      agent.reports_through = batch.sequence();
      for (const auto& report : batch.reports()) agent.reports.push_back(report);
    }
    return batch.sequence();
  }

  grpc::Status DoWaitPrefix(const v1::WaitPrefixRequest& request,
                            v1::WaitPrefixResponse* response) {
    const absl::Time until = absl::Now() + FromProto(request.limit());
    MutexLock lock(&mu_);
    while (true) {
      response->Clear();
      for (const auto& [key, value] : keys_) {
        if (key.rfind(request.prefix(), 0) != 0) continue;
        v1::WaitPrefixResponse::Entry* entry = response->add_entries();
        entry->set_key(key);
        entry->set_value(value);
      }
      if (response->entries_size() >= request.count()) return grpc::Status::OK;
      if (!up_) return {grpc::StatusCode::UNAVAILABLE, "going down"};
      if (absl::Now() >= until) return {grpc::StatusCode::DEADLINE_EXCEEDED, "not there"};
      changed_.WaitFor(&mu_, until - absl::Now());
    }
  }

  Membership membership_{this};
  Rendezvous rendezvous_{this};
  LoopbackServer server_;

  Mutex mu_;
  CondVar changed_;
  bool up_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Agent> agents_ ABSL_GUARDED_BY(mu_);  // by incarnation
  std::map<std::string, bool> given_up_ ABSL_GUARDED_BY(mu_);
  std::vector<grpc::Status> refusals_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::ConnectResponse> orders_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> keys_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
