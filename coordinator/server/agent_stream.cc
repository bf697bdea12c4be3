#include "coordinator/server/agent_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "coordinator/server/agent_convert.h"

namespace muster {

AgentStream::AgentStream(StreamId id, Engine* engine, AgentStreams* streams)
    : id_(id), engine_(engine), streams_(streams) {}

void AgentStream::Begin() { Read(); }

void AgentStream::Read() {
  MutexLock lock(&mu_);
  if (finished_ || end_.has_value()) return;
  StartRead(&request_);
}

void AgentStream::OnReadDone(bool ok) {
  if (!ok) {  // the agent has gone, or this side has finished
    PostClose();
    End(absl::CancelledError("the agent has closed its stream"));
    return;
  }
  absl::StatusOr<Event> event = EventOf(request_);
  if (!event.ok()) {
    End(event.status());
    return;
  }
  const auto self = streams_->Find(id_);  // alive until the engine has answered
  const absl::Status posted = engine_->Post(*std::move(event), [self](const Outcome& outcome) {
    if (outcome.status.ok()) {
      self->Read();
    } else {
      self->End(outcome.status);
    }
  });
  if (!posted.ok()) End(posted);
}

absl::StatusOr<Event> AgentStream::EventOf(const v1::ConnectRequest& request) {
  if (request.has_hello() == said_hello_) {
    return absl::InvalidArgumentError(said_hello_ ? "hello came twice in one stream"
                                                  : "the first message of a stream must be hello");
  }
  said_hello_ = true;
  switch (request.message_case()) {
    case v1::ConnectRequest::kHello:
      return OpenStream{request.hello().incarnation(), id_};
    case v1::ConnectRequest::kHeartbeat: {
      Heartbeat heartbeat{.stream = id_, .sequence = request.heartbeat().sequence()};
      for (const auto& progress : request.heartbeat().progress()) {
        heartbeat.progress.push_back({progress.job_id(), progress.epoch(), progress.iteration()});
      }
      return heartbeat;
    }
    case v1::ConnectRequest::kGoodbye:
      return LeaveAgent{id_, request.goodbye().reason()};
    case v1::ConnectRequest::kReports: {
      auto batch = FromProto(request.reports(), id_);
      if (!batch.ok()) return batch.status();
      return *std::move(batch);
    }
    case v1::ConnectRequest::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message of a kind that is not known here");
}

void AgentStream::Send(const AgentMessage& message) {
  v1::ConnectResponse response = ToProto(message);
  MutexLock lock(&mu_);
  if (finished_ || end_.has_value()) return;
  if (queue_.size() >= kMaxQueued) {
    end_ = absl::ResourceExhaustedError(
        absl::StrCat(queue_.size(), " messages wait: this agent does not read its stream"));
    FinishIfIdle();
    return;
  }
  queue_.push_back(std::move(response));
  if (writing_) return;
  writing_ = true;
  StartWrite(&queue_.front());
}

void AgentStream::OnWriteDone(bool ok) {
  MutexLock lock(&mu_);
  writing_ = false;
  queue_.pop_front();
  if (!ok && !end_.has_value()) end_ = absl::CancelledError("the agent has gone");
  if (end_.has_value()) {
    FinishIfIdle();
  } else if (!queue_.empty()) {
    writing_ = true;
    StartWrite(&queue_.front());
  }
}

void AgentStream::End(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!end_.has_value()) end_ = status;
  FinishIfIdle();
}

void AgentStream::FinishIfIdle() {
  if (writing_ || finished_ || !end_.has_value()) return;
  finished_ = true;
  Finish(ToGrpc(*end_));
}

void AgentStream::PostClose() {
  {
    MutexLock lock(&mu_);
    if (close_posted_) return;
    close_posted_ = true;
  }
  // Refused only when the engine is full or has stopped; then silence says the same, later.
  (void)engine_->Post(CloseStream{id_}, nullptr);
}

void AgentStream::OnCancel() {
  PostClose();
  End(absl::CancelledError("the agent has gone"));
}

void AgentStream::OnDone() {
  PostClose();
  streams_->Remove(id_);
}

AgentStream* AgentStreams::Open(Engine* engine) {
  std::shared_ptr<AgentStream> stream;
  {
    MutexLock lock(&mu_);
    const StreamId id = next_++;
    stream = std::make_shared<AgentStream>(id, engine, this);
    streams_[id] = stream;
  }
  stream->Begin();
  return stream.get();
}

std::shared_ptr<AgentStream> AgentStreams::Find(StreamId id) {
  MutexLock lock(&mu_);
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : found->second;
}

void AgentStreams::Remove(StreamId id) {
  std::shared_ptr<AgentStream> last;  // destroyed outside of the lock
  MutexLock lock(&mu_);
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  last = std::move(found->second);
  streams_.erase(found);
}

void AgentStreams::EndAll(const absl::Status& status) {
  std::vector<std::shared_ptr<AgentStream>> all;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, stream] : streams_) all.push_back(stream);
  }
  for (const auto& stream : all) stream->End(status);
}

}  // namespace muster
