#include "worker/agent/coordinator_client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <atomic>
#include <deque>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/runtime/log.h"
#include "common/runtime/mutex.h"
#include "common/runtime/random_bytes.h"
#include "muster/v1/membership.grpc.pb.h"
#include "worker/agent/convert.h"

namespace muster {
namespace {

// A coordinator that takes a stream and never answers on it is no better than none.
constexpr absl::Duration kWelcomeLimit = absl::Seconds(30);
constexpr size_t kMaxShownOrder = 256;  // bytes, in the log

}  // namespace

class CoordinatorClient::Impl {
 public:
  Impl(std::shared_ptr<grpc::Channel> channel, std::string address,
       v1::RegisterRequest registration, Callbacks callbacks)
      : address_(std::move(address)),
        callbacks_(std::move(callbacks)),
        stub_(v1::MembershipService::NewStub(channel)),
        registration_(std::move(registration)) {
    registration_.set_incarnation(RandomBytes(16));
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    {
      MutexLock lock(&mu_);
      ending_ = true;
      if (context_ != nullptr) context_->TryCancel();
      changed_.NotifyAll();
    }
    thread_.join();
  }

  void Send(int64_t stream, std::shared_ptr<const NodeReportBatch> batch) {
    MutexLock lock(&mu_);
    if (stream != stream_ || context_ == nullptr) return;
    outbox_.push_back(std::move(batch));
    changed_.NotifyAll();
  }

  void SetProgress(std::vector<JobProgress> progress) {
    MutexLock lock(&mu_);
    progress_ = std::move(progress);
  }

  void Leave(absl::string_view reason, absl::Duration limit) {
    const absl::Time deadline = absl::Now() + limit;
    MutexLock lock(&mu_);
    goodbye_ = std::string(reason);
    changed_.NotifyAll();
    while (context_ != nullptr && absl::Now() < deadline) {
      changed_.WaitFor(&mu_, deadline - absl::Now());
    }
    ending_ = true;
  }

  void NewIncarnation() {
    MutexLock lock(&mu_);
    new_incarnation_ = true;
    if (context_ != nullptr) context_->TryCancel();
    changed_.NotifyAll();
  }

 private:
  using Stream = grpc::ClientReaderWriterInterface<v1::ConnectRequest, v1::ConnectResponse>;

  void Run() {
    int attempt = 0;
    bool registered = false;
    while (!ending()) {
      TakeNewIncarnation();
      if (!registered) {
        const absl::Status status = Register();
        if (status.ok()) {
          registered = true;
          ever_registered_ = true;
        } else if (status.code() == absl::StatusCode::kAborted) {
          OnIncarnationOver(status);
        } else if (!ever_registered_ && IsFinal(status)) {
          callbacks_.on_refused(Annotate(status, absl::StrCat("coordinator ", address_)));
          return;
        } else {
          NoteUnreachable(status);
        }
      }
      if (registered) {
        bool welcomed = false;
        const absl::Status status = HoldStream(&welcomed);
        if (ending()) return;
        if (welcomed) attempt = 0;
        // Unknown to it (it restarted, say), or refused: register again before the next stream.
        if (status.code() != absl::StatusCode::kUnavailable) registered = false;
        NoteUnreachable(status);
      }
      Pause(Backoff(attempt++, std::uniform_real_distribution<>(0, 1)(random_)));
    }
  }

  static bool IsFinal(const absl::Status& status) {
    return status.code() == absl::StatusCode::kInvalidArgument ||
           status.code() == absl::StatusCode::kFailedPrecondition ||
           status.code() == absl::StatusCode::kUnauthenticated ||
           status.code() == absl::StatusCode::kUnimplemented;
  }

  bool ending() {
    MutexLock lock(&mu_);
    return ending_ || (goodbye_ && context_ == nullptr);
  }

  void TakeNewIncarnation() {
    MutexLock lock(&mu_);
    if (std::exchange(new_incarnation_, false)) registration_.set_incarnation(RandomBytes(16));
  }

  absl::Status Register() {
    grpc::ClientContext context;
    SetDeadline(&context, kDefaultRpcDeadline);
    v1::RegisterResponse response;
    const absl::Status status = FromGrpc(stub_->Register(&context, registration_, &response));
    if (!status.ok()) return status;
    if (response.has_heartbeat_interval()) {
      heartbeat_interval_ = FromProto(response.heartbeat_interval());
    }
    last_problem_.clear();
    MUSTER_LOG(kInfo) << "registered node=" << registration_.node()
                      << " workers=" << registration_.workers_size() << " coordinator=" << address_
                      << " seen_as=" << response.observed_address();
    return absl::OkStatus();
  }

  void OnIncarnationOver(const absl::Status& status) {
    MUSTER_LOG(kWarning) << "this incarnation is over: " << status.message();
    callbacks_.on_incarnation_over();
    MutexLock lock(&mu_);
    // The agent answers with NewIncarnation(); without the wait the loop would ask again with the
    // old one.
    while (!new_incarnation_ && !ending_) changed_.Wait(&mu_);
  }

  // Until the stream breaks. A clean end by the coordinator counts as UNAVAILABLE.
  absl::Status HoldStream(bool* welcomed) {
    grpc::ClientContext context;
    int64_t number;
    {
      MutexLock lock(&mu_);
      if (ending_ || new_incarnation_ || goodbye_) return absl::AbortedError("ending");
      context_ = &context;
      number = ++stream_;
      outbox_.clear();
      stream_broken_ = welcomed_ = false;
    }
    std::unique_ptr<Stream> stream = stub_->Connect(&context);
    v1::ConnectRequest hello;
    hello.mutable_hello()->set_incarnation(registration_.incarnation());
    stream->Write(hello);
    std::thread writer([&] { WriteLoop(stream.get(), &context); });
    v1::ConnectResponse response;
    while (stream->Read(&response)) {
      if (auto order = ToOrder(response)) {
        if (std::holds_alternative<WelcomeOrder>(*order)) *welcomed = welcomed_ = true;
        callbacks_.on_order(number, *std::move(order));
      } else {
        MUSTER_LOG(kError) << "an order of the coordinator is refused: this version does not know "
                              "its kind: "
                           << response.ShortDebugString().substr(0, kMaxShownOrder);
      }
      response.Clear();
    }
    {
      MutexLock lock(&mu_);
      context_ = nullptr;
      stream_broken_ = true;
      changed_.NotifyAll();
    }
    writer.join();
    const absl::Status status = FromGrpc(stream->Finish());
    callbacks_.on_stream_lost(number);
    return status.ok() ? absl::UnavailableError("it closed the stream") : status;
  }

  void WriteLoop(Stream* stream, grpc::ClientContext* context) {
    int64_t heartbeats = 0;
    absl::Time next_heartbeat = absl::Now() + heartbeat_interval_;
    const absl::Time welcome_due = absl::Now() + kWelcomeLimit;
    while (true) {
      std::shared_ptr<const NodeReportBatch> batch;
      std::vector<JobProgress> progress;
      v1::ConnectRequest request;
      {
        MutexLock lock(&mu_);
        while (!stream_broken_ && outbox_.empty() && !goodbye_ && absl::Now() < next_heartbeat) {
          changed_.WaitFor(&mu_, next_heartbeat - absl::Now());
        }
        if (stream_broken_) return;
        if (!welcomed_ && absl::Now() >= welcome_due) break;
        if (!outbox_.empty()) {
          batch = std::move(outbox_.front());
          outbox_.pop_front();
        } else if (goodbye_) {
          request.mutable_goodbye()->set_reason(*goodbye_);
        }
        progress = progress_;
      }
      if (request.has_goodbye()) {
        // The last message: the coordinator answers by ending the stream.
        if (!stream->Write(request) || !stream->WritesDone()) break;
        return;
      }
      // A heartbeat that is due goes first: a flood of batches must not look like silence.
      if (absl::Now() >= next_heartbeat) {
        *request.mutable_heartbeat() = ToProto(++heartbeats, progress);
        if (!stream->Write(request)) break;
        next_heartbeat = absl::Now() + heartbeat_interval_;
      }
      if (batch != nullptr) {
        *request.mutable_reports() = ToProto(*batch);
        if (!stream->Write(request)) break;
      }
    }
    context->TryCancel();  // the reader learns of it
  }

  void NoteUnreachable(const absl::Status& status) {
    const std::string problem(status.message());
    if (problem == last_problem_ || ending()) return;
    last_problem_ = problem;
    if (status.code() == absl::StatusCode::kAlreadyExists) {
      MUSTER_LOG(kWarning) << "the coordinator at " << address_
                           << " refuses this agent: " << problem
                           << "; asking again until they are free";
      return;
    }
    MUSTER_LOG(kWarning) << "no stream to the coordinator at " << address_ << ": " << problem
                         << "; trying again until it answers";
  }

  void Pause(absl::Duration duration) {
    const absl::Time until = absl::Now() + duration;
    MutexLock lock(&mu_);
    while (!ending_ && !new_incarnation_ && absl::Now() < until) {
      changed_.WaitFor(&mu_, until - absl::Now());
    }
  }

  const std::string address_;
  const Callbacks callbacks_;
  const std::unique_ptr<v1::MembershipService::Stub> stub_;

  // Used by the client's own thread only.
  v1::RegisterRequest registration_;
  std::string last_problem_;
  bool ever_registered_ = false;
  std::atomic<bool> welcomed_{false};  // on the stream that is open; its writer asks
  std::minstd_rand random_{std::random_device{}()};
  absl::Duration heartbeat_interval_ = absl::Milliseconds(500);

  Mutex mu_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool new_incarnation_ ABSL_GUARDED_BY(mu_) = false;
  bool stream_broken_ ABSL_GUARDED_BY(mu_) = false;
  int64_t stream_ ABSL_GUARDED_BY(mu_) = 0;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;  // of the stream that is open
  std::deque<std::shared_ptr<const NodeReportBatch>> outbox_ ABSL_GUARDED_BY(mu_);
  std::vector<JobProgress> progress_ ABSL_GUARDED_BY(mu_);
  std::optional<std::string> goodbye_ ABSL_GUARDED_BY(mu_);  // the reason, once it is to be said

  std::thread thread_;
};

CoordinatorClient::CoordinatorClient(std::shared_ptr<grpc::Channel> channel, std::string address,
                                     v1::RegisterRequest registration, Callbacks callbacks)
    : impl_(std::make_unique<Impl>(std::move(channel), std::move(address), std::move(registration),
                                   std::move(callbacks))) {}
CoordinatorClient::~CoordinatorClient() = default;
void CoordinatorClient::Send(int64_t stream, std::shared_ptr<const NodeReportBatch> batch) {
  impl_->Send(stream, std::move(batch));
}
void CoordinatorClient::SetProgress(std::vector<JobProgress> progress) {
  impl_->SetProgress(std::move(progress));
}
void CoordinatorClient::Leave(absl::string_view reason, absl::Duration limit) {
  impl_->Leave(reason, limit);
}
void CoordinatorClient::NewIncarnation() { impl_->NewIncarnation(); }

}  // namespace muster
