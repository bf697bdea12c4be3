// An agent as far as the coordinator can tell: registers, keeps a stream, sends what a test says.
// Waits on what the coordinator sends, never on a clock.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "muster/v1/membership.grpc.pb.h"

namespace muster {

class FakeAgent {
 public:
  FakeAgent(const std::string& coordinator, const std::string& node, int slots = 1)
      : stub_(v1::MembershipService::NewStub(NewChannel(coordinator))),
        node_(node),
        slots_(slots) {}
  ~FakeAgent() { Vanish(); }

  v1::RegisterRequest Request() const {
    v1::RegisterRequest request;
    request.set_incarnation("incarnation-of-" + node_);
    request.set_node(node_);
    request.set_protocol_version(1);
    request.set_num_cpus(4);
    for (int i = 0; i < slots_; ++i) {
      v1::WorkerDescription* worker = request.add_workers();
      worker->set_name(Worker(i));
      worker->set_device("cpu");
      worker->set_kind(v1::DEVICE_KIND_CPU);
      worker->set_index(i);
    }
    return request;
  }
  std::string Worker(int slot = 0) const { return absl::StrCat(node_, "/", slot); }

  grpc::Status Register(v1::RegisterResponse* response) {
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(30));
    return stub_->Register(&context, Request(), response);
  }
  void Connect() {
    context_ = std::make_unique<grpc::ClientContext>();
    SetDeadline(context_.get(), absl::Seconds(60));
    stream_ = stub_->Connect(context_.get());
    v1::ConnectRequest request;
    request.mutable_hello()->set_incarnation("incarnation-of-" + node_);
    stream_->Write(request);
  }
  void Join() {
    v1::RegisterResponse response;
    const grpc::Status status = Register(&response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    Connect();
    ASSERT_TRUE(Next().has_welcome());
  }
  // The next message but acknowledgements; empty when the stream has ended.
  v1::ConnectResponse Next() {
    v1::ConnectResponse response;
    while (stream_->Read(&response)) {
      if (response.has_ack()) {
        acknowledged_ = response.ack().through();
      } else {
        return response;
      }
    }
    return {};
  }
  // A report of this agent's trainer; `fill` sets its body.
  template <typename Fill>
  void Report(const v1::Launch& launch, Fill fill, int slot = 0) {
    v1::ConnectRequest request;
    request.mutable_reports()->set_sequence(++sequence_);
    v1::TrainerReport* report = request.mutable_reports()->add_reports();
    report->set_worker(launch.assignments(slot).worker());
    report->set_job_id(launch.job_id());
    report->set_epoch(launch.epoch());
    report->set_rank(launch.assignments(slot).rank());
    fill(report);
    stream_->Write(request);
  }
  void Beat() {
    v1::ConnectRequest request;
    request.mutable_heartbeat()->set_sequence(++beats_);
    stream_->Write(request);
  }
  // How the coordinator ended the stream.
  grpc::Status Finish() {
    stream_->WritesDone();
    const grpc::Status status = stream_->Finish();
    stream_.reset();
    return status;
  }
  // As a process that was killed.
  void Vanish() {
    if (stream_ == nullptr) return;
    context_->TryCancel();
    (void)stream_->Finish();
    stream_.reset();
  }

 private:
  std::unique_ptr<v1::MembershipService::Stub> stub_;
  const std::string node_;
  const int slots_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ConnectRequest, v1::ConnectResponse>> stream_;
  int64_t sequence_ = 0, beats_ = 0, acknowledged_ = 0;
};

}  // namespace muster
