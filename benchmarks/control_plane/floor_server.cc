// The floor: a gRPC server with the callback API that answers, echoes, broadcasts and holds a
// barrier, and does nothing else. Prints "listening on HOST:PORT"; ends with its parent's signal.
#include <grpcpp/grpcpp.h>

#include <deque>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/rpc/channel.h"
#include "common/runtime/mutex.h"
#include "floor.grpc.pb.h"

namespace muster::bench {
namespace {

class FloorService;

class FloorStream final : public grpc::ServerBidiReactor<FloorMessage, FloorMessage> {
 public:
  explicit FloorStream(FloorService* service) : service_(service) { StartRead(&in_); }

  void Send(const FloorMessage& message) {
    MutexLock lock(&mu_);
    if (finished_) return;
    queue_.push_back(message);
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      MutexLock lock(&mu_);
      finished_ = true;
      if (queue_.empty()) Finish(grpc::Status::OK);
      return;
    }
    if (in_.reply_bytes() > 0) {
      FloorMessage reply;
      reply.set_payload(std::string(in_.reply_bytes(), 'r'));
      Send(reply);
    }
    StartRead(&in_);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    queue_.pop_front();
    if (finished_) {
      Finish(grpc::Status::OK);
    } else if (!queue_.empty()) {
      StartWrite(&queue_.front());
    }
  }
  void OnDone() override;

  FloorService* const service_;
  FloorMessage in_;
  Mutex mu_;
  std::deque<FloorMessage> queue_ ABSL_GUARDED_BY(mu_);  // front: being written
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

class FloorService final : public Floor::CallbackService {
 public:
  grpc::ServerUnaryReactor* Call(grpc::CallbackServerContext* context, const FloorMessage* request,
                                 FloorMessage* response) override {
    response->set_payload(std::string(request->reply_bytes(), 'r'));
    return Answered(context);
  }

  grpc::ServerBidiReactor<FloorMessage, FloorMessage>* Stream(
      grpc::CallbackServerContext* context) override {
    auto* stream = new FloorStream(this);
    MutexLock lock(&mu_);
    streams_.insert(stream);
    return stream;
  }

  grpc::ServerUnaryReactor* Broadcast(grpc::CallbackServerContext* context,
                                      const FloorMessage* request,
                                      FloorMessage* response) override {
    FloorMessage message;
    message.set_payload(request->payload());
    {
      MutexLock lock(&mu_);
      for (FloorStream* stream : streams_) stream->Send(message);
    }
    return Answered(context);
  }

  grpc::ServerUnaryReactor* Barrier(grpc::CallbackServerContext* context,
                                    const FloorMessage* request, FloorMessage*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    std::vector<grpc::ServerUnaryReactor*> all;
    {
      MutexLock lock(&mu_);
      auto& waiting = waiting_[request->round()];
      waiting.push_back(reactor);
      if (static_cast<int>(waiting.size()) < request->count()) return reactor;
      all.swap(waiting);
      waiting_.erase(request->round());
    }
    for (grpc::ServerUnaryReactor* each : all) each->Finish(grpc::Status::OK);
    return reactor;
  }

  void Remove(FloorStream* stream) {
    MutexLock lock(&mu_);
    streams_.erase(stream);
  }

 private:
  static grpc::ServerUnaryReactor* Answered(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  Mutex mu_;
  std::set<FloorStream*> streams_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, std::vector<grpc::ServerUnaryReactor*>> waiting_ ABSL_GUARDED_BY(mu_);
};

void FloorStream::OnDone() {
  service_->Remove(this);
  delete this;
}

int Main() {
  FloorService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  SetServerLimits(&builder);  // the floor has the coordinator's settings of gRPC
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::cout << "listening on 127.0.0.1:" << port << std::endl;
  server->Wait();
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main() { return muster::bench::Main(); }
