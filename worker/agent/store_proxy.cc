#include "worker/agent/store_proxy.h"

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/runtime/mutex.h"
#include "muster/v1/rendezvous.grpc.pb.h"
#include "muster/v1/training.grpc.pb.h"

namespace muster {
namespace {

constexpr absl::Duration kLongestWait = absl::Minutes(1);  // the service's own bound of one call

StoreReplyMessage ReplyWith(int64_t request, const absl::Status& status) {
  return {.request = request,
          .ok = status.ok(),
          .error = std::string(status.message()),
          .error_code = static_cast<int>(status.code())};
}

}  // namespace

class StoreProxy::Impl {
 public:
  explicit Impl(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::RendezvousService::NewStub(channel)),
        training_(v1::TrainingService::NewStub(channel)) {}

  ~Impl() {
    MutexLock lock(&mu_);
    ending_ = true;
    for (Call* call : calls_) {
      if (call->context != nullptr) call->context->TryCancel();
      call->alarm.Cancel();
    }
    while (!calls_.empty()) ended_.Wait(&mu_);
  }

  void Ask(const std::string& job_id, const StoreRequestMessage& request,
           std::function<void(StoreReplyMessage)> reply) {
    auto* call = new Call{.job_id = job_id, .request = request, .reply = std::move(reply)};
    Begin(call, request.limit_ms);
  }

  void Ask(const std::string& job_id, int rank, const TracePieceMessage& piece,
           std::function<void(StoreReplyMessage)> reply) {
    auto* call = new Call{.job_id = job_id, .reply = std::move(reply)};
    call->request.request = piece.request;
    v1::UploadTraceRequest& upload = call->upload_request.emplace();
    upload.set_job_id(job_id);
    upload.set_epoch(piece.epoch);
    upload.set_directive(piece.directive);
    upload.set_rank(rank);
    upload.set_offset(piece.offset);
    upload.set_data(piece.data);
    upload.set_last(piece.last);
    Begin(call, piece.limit_ms);
  }

 private:
  // Lives from Ask to its reply; owned by whichever callback runs next.
  struct Call {
    std::string job_id;
    StoreRequestMessage request;
    std::function<void(StoreReplyMessage)> reply;
    absl::Time deadline;
    int attempt = 0;
    std::unique_ptr<grpc::ClientContext> context;
    grpc::Alarm alarm;
    v1::SetKeyRequest set_request;
    v1::SetKeyResponse set_response;
    v1::WaitPrefixRequest wait_request;
    v1::WaitPrefixResponse wait_response;
    std::optional<v1::UploadTraceRequest> upload_request;  // set: a piece of a trace
    v1::UploadTraceResponse upload_response;
  };

  void Begin(Call* call, int64_t limit_ms) {
    call->deadline = absl::Now() + absl::Milliseconds(limit_ms);
    {
      MutexLock lock(&mu_);
      calls_.insert(call);
    }
    Try(call);
  }

  void Try(Call* call) {
    {
      MutexLock lock(&mu_);
      if (!ending_) {
        call->context = std::make_unique<grpc::ClientContext>();
      } else {
        call->context.reset();
      }
    }
    if (call->context == nullptr) {
      Finish(call, absl::CancelledError("the agent is ending"));
      return;
    }
    const auto done = [this, call](grpc::Status status) { OnDone(call, FromGrpc(status)); };
    if (call->upload_request.has_value()) {
      SetDeadline(call->context.get(), kDefaultRpcDeadline);
      training_->async()->UploadTrace(call->context.get(), &*call->upload_request,
                                      &call->upload_response, done);
      return;
    }
    if (call->request.op == StoreRequestMessage::Op::kSet) {
      call->set_request.set_job_id(call->job_id);
      call->set_request.set_epoch(call->request.epoch);
      call->set_request.set_key(call->request.key);
      call->set_request.set_value(absl::HexStringToBytes(call->request.value));
      SetDeadline(call->context.get(), kDefaultRpcDeadline);
      stub_->async()->SetKey(call->context.get(), &call->set_request, &call->set_response, done);
      return;
    }
    const absl::Duration limit =
        std::clamp(call->deadline - absl::Now(), absl::ZeroDuration(), kLongestWait);
    call->wait_request.set_job_id(call->job_id);
    call->wait_request.set_epoch(call->request.epoch);
    call->wait_request.set_prefix(call->request.key);
    call->wait_request.set_count(call->request.count);
    *call->wait_request.mutable_limit() = ToProto(limit);
    SetDeadline(call->context.get(), limit + kDefaultRpcDeadline);
    stub_->async()->WaitPrefix(call->context.get(), &call->wait_request, &call->wait_response,
                               done);
  }

  void OnDone(Call* call, const absl::Status& status) {
    // Cancelled, and not by us: the server went down while the call waited in it.
    const bool away = status.code() == absl::StatusCode::kUnavailable ||
                      status.code() == absl::StatusCode::kCancelled;
    const bool worth_another = away || status.code() == absl::StatusCode::kDeadlineExceeded;
    if (!worth_another || absl::Now() >= call->deadline) {
      Finish(call, status);
      return;
    }
    MutexLock lock(&mu_);
    // A call that waited in vain goes on at once; an unreachable coordinator gets some rest.
    const absl::Duration pause =
        away ? Backoff(call->attempt++, std::uniform_real_distribution<>(0, 1)(random_))
             : absl::ZeroDuration();
    const absl::Time at = ending_ ? absl::Now() : absl::Now() + pause;
    call->alarm.Set(absl::ToChronoTime(at), [this, call](bool) { Try(call); });
  }

  void Finish(Call* call, const absl::Status& status) {
    StoreReplyMessage reply = ReplyWith(call->request.request, status);
    for (const auto& entry : call->wait_response.entries()) {
      reply.entries.emplace_back(entry.key(), absl::BytesToHexString(entry.value()));
    }
    call->reply(std::move(reply));
    MutexLock lock(&mu_);
    calls_.erase(call);
    delete call;
    ended_.NotifyAll();
  }

  const std::unique_ptr<v1::RendezvousService::Stub> stub_;
  const std::unique_ptr<v1::TrainingService::Stub> training_;
  Mutex mu_;
  CondVar ended_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::set<Call*> calls_ ABSL_GUARDED_BY(mu_);
  std::minstd_rand random_ ABSL_GUARDED_BY(mu_){std::random_device{}()};
};

StoreProxy::StoreProxy(std::shared_ptr<grpc::Channel> channel)
    : impl_(std::make_unique<Impl>(std::move(channel))) {}
StoreProxy::~StoreProxy() = default;
void StoreProxy::Ask(const std::string& job_id, const StoreRequestMessage& request,
                     std::function<void(StoreReplyMessage)> reply) {
  impl_->Ask(job_id, request, std::move(reply));
}
void StoreProxy::Ask(const std::string& job_id, int rank, const TracePieceMessage& piece,
                     std::function<void(StoreReplyMessage)> reply) {
  impl_->Ask(job_id, rank, piece, std::move(reply));
}

}  // namespace muster
