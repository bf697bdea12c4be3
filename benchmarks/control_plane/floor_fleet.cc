// The same load on the floor's server: as many calls, streams and messages of the same sizes.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "benchmarks/control_plane/fleet.h"
#include "benchmarks/control_plane/gathering.h"
#include "benchmarks/control_plane/muster_messages.h"
#include "benchmarks/control_plane/stream_call.h"
#include "floor.grpc.pb.h"

namespace muster::bench {
namespace {

// The message has this many bytes on the wire (below 128: a tag and a length byte go before).
FloorMessage Sized(size_t bytes) {
  FloorMessage message;
  message.set_payload(std::string(bytes > 2 ? bytes - 2 : 0, 'x'));
  return message;
}

class FloorFleet final : public Fleet {
 public:
  explicit FloorFleet(const FleetShape& shape)
      : shape_(shape), own_(OwnChannel(shape.address)), own_stub_(Floor::NewStub(own_)) {}

  nlohmann::json Run(const std::string& command, const std::vector<double>& numbers) override {
    const auto number = [&](size_t i) { return i < numbers.size() ? numbers[i] : 0; };
    if (command == "register") return Register();
    if (command == "open") return OpenStreams();
    if (command == "beat") return Beat(number(0), number(1));
    if (command == "broadcast") {
      return Broadcast(static_cast<int>(number(0)), static_cast<int>(number(1)));
    }
    if (command == "barriers") return Barriers(static_cast<int>(number(0)), false);
    if (command == "releases") return Barriers(static_cast<int>(number(0)), true);
    return nullptr;
  }

 private:
  using Stream = StreamCall<FloorMessage, FloorMessage>;

  struct UnaryCall {
    grpc::ClientContext context;
    FloorMessage request, response;
  };

  nlohmann::json Register() {
    replies_.Expect(shape_.num_agents());
    const double start = Now();
    for (int i = 0; i < shape_.num_agents(); ++i) {
      channels_.push_back(OwnChannel(shape_.address));
      stubs_.push_back(Floor::NewStub(channels_.back()));
      auto* call = new UnaryCall;
      call->context.set_wait_for_ready(true);
      const v1::RegisterRequest like = Registration(i, shape_.workers_per_agent, 1);
      call->request = Sized(like.ByteSizeLong());
      // Its reply: names of the workers, two durations, two short texts.
      call->request.set_reply_bytes(40 + 14 * shape_.workers_per_agent);
      stubs_.back()->async()->Call(&call->context, &call->request, &call->response,
                                   [this, call](const grpc::Status& status) {
                                     MustBeOk(status, "call");
                                     delete call;
                                     replies_.Arrive();
                                   });
    }
    return Summary(replies_.Wait(start, "called"));
  }

  nlohmann::json OpenStreams() {
    received_.Expect(shape_.num_agents());
    const double start = Now();
    for (const auto& stub : stubs_) {
      streams_.push_back(
          Stream::Open([&](grpc::ClientContext* context,
                           auto* reactor) { stub->async()->Stream(context, reactor); },
                       [this](const FloorMessage&) { received_.Arrive(); },
                       [](const grpc::Status& status) { MustBeOk(status, "a stream ended"); }));
      FloorMessage hello = Sized(HelloOf(Registration(0, 1, 1)).ByteSizeLong());
      hello.set_reply_bytes(4);
      streams_.back()->Write(std::move(hello));
    }
    return Summary(received_.Wait(start, "streams opened"));
  }

  nlohmann::json Beat(double interval_s, double window_s) {
    const double start = Now();
    int64_t skipped = 0;
    const FloorMessage heartbeat = Sized(HeartbeatOf(1000).ByteSizeLong());
    const int64_t sent = SendPaced(shape_.num_agents(), interval_s, window_s, [&](int i) {
      if (streams_[i]->idle()) {
        streams_[i]->Write(heartbeat);
      } else {
        ++skipped;
      }
    });
    return {{"messages", sent - skipped}, {"skipped", skipped}, {"seconds", Now() - start}};
  }

  // From the call to the last stream that has the message.
  nlohmann::json Broadcast(int bytes, int count) {
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      grpc::ClientContext context;
      const FloorMessage request = Sized(bytes);
      FloorMessage response;
      received_.Expect(shape_.num_agents());
      const double start = Now();
      MustBeOk(own_stub_->Broadcast(&context, request, &response), "broadcast");
      seconds.push_back(received_.Wait(start, "broadcast").back());
    }
    std::sort(seconds.begin(), seconds.end());
    return Summary(seconds);
  }

  nlohmann::json Barriers(int count, bool last_alone) {
    std::vector<double> halves, alls;
    for (int i = 0; i < count; ++i) {
      const int world = shape_.num_workers;
      ++round_;
      replies_.Expect(world);
      double start = Now();
      for (int worker = 0; worker < world - 1; ++worker) Enter(worker);
      if (last_alone) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100 + world / 8));
        start = Now();
      }
      Enter(world - 1);
      const std::vector<double> out = replies_.Wait(start, "out of the barrier");
      halves.push_back(out[out.size() / 2]);
      alls.push_back(out.back());
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    std::sort(halves.begin(), halves.end());
    std::sort(alls.begin(), alls.end());
    return {{"half", Summary(halves)}, {"all", Summary(alls)}};
  }

  void Enter(int worker) {
    auto* call = new UnaryCall;
    call->request.set_round(round_);
    call->request.set_count(shape_.num_workers);
    stubs_[worker / shape_.workers_per_agent]->async()->Barrier(
        &call->context, &call->request, &call->response, [this, call](const grpc::Status& status) {
          MustBeOk(status, "barrier");
          delete call;
          replies_.Arrive();
        });
  }

  const FleetShape shape_;
  const std::shared_ptr<grpc::Channel> own_;
  const std::unique_ptr<Floor::Stub> own_stub_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<Floor::Stub>> stubs_;
  std::vector<std::shared_ptr<Stream>> streams_;
  int64_t round_ = 0;
  Gathering replies_, received_;
};

}  // namespace

std::unique_ptr<Fleet> NewFloorFleet(const FleetShape& shape) {
  return std::make_unique<FloorFleet>(shape);
}

}  // namespace muster::bench
