#include "coordinator/server/agent_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/address.h"
#include "common/rpc/convert.h"
#include "coordinator/server/agent_convert.h"
#include "coordinator/server/reason.h"

namespace muster {

AgentStream::AgentStream(StreamId id, std::string address, AgentStreams* streams)
    : id_(id), address_(std::move(address)), streams_(streams) {}

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
  if (request_.has_heartbeat() && said_hello_) {
    Note(request_.heartbeat());
    return;
  }
  absl::StatusOr<Event> event = EventOf(request_);
  if (!event.ok()) {
    End(event.status());
    return;
  }
  request_.Clear();  // a batch may be large, and the stream is idle for most of its life
  const absl::Status posted = streams_->engine_->Post(
      *std::move(event), [self = shared_from_this()](const Outcome& outcome) {
        if (outcome.status.ok()) {
          self->Read();
        } else {
          self->End(outcome.status);
        }
      });
  if (!posted.ok()) End(posted);
}

void AgentStream::Note(const v1::Heartbeat& heartbeat) {
  bool first = false;
  {
    MutexLock lock(&mu_);
    newest_.stream = id_;
    newest_.sequence = heartbeat.sequence();
    newest_.progress.resize(heartbeat.progress_size());
    for (int i = 0; i < heartbeat.progress_size(); ++i) {
      const v1::TrainerProgress& from = heartbeat.progress(i);
      newest_.progress[i].job_id = from.job_id();
      newest_.progress[i].epoch = from.epoch();
      newest_.progress[i].iteration = from.iteration();
    }
    first = heartbeats_noted_++ == 0;
    reading_held_ = heartbeats_noted_ >= streams_->limits_.max_heartbeats_per_tick;
    if (!reading_held_ && !finished_ && !end_.has_value()) StartRead(&request_);
  }
  // Last: from here on the engine may be done with this heartbeat at any moment.
  streams_->num_heartbeats_.fetch_add(1, std::memory_order_relaxed);
  if (first) streams_->NoteHeartbeatOf(shared_from_this());
}

void AgentStream::TakeHeartbeat(std::vector<Heartbeat>* heartbeats) {
  MutexLock lock(&mu_);
  if (finished_ || end_.has_value()) return;
  heartbeats->push_back(newest_);
  heartbeats_noted_ = 0;
  if (std::exchange(reading_held_, false)) StartRead(&request_);
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
    case v1::ConnectRequest::kGoodbye:
      return LeaveAgent{id_, ReasonOf(request.goodbye().reason())};
    case v1::ConnectRequest::kReports: {
      auto batch = FromProto(request.reports(), id_);
      if (!batch.ok()) return batch.status();
      return *std::move(batch);
    }
    case v1::ConnectRequest::kHeartbeat:  // see Note
    case v1::ConnectRequest::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message of a kind that is not known here");
}

void AgentStream::Send(const AgentMessage& message) {
  v1::ConnectResponse response = ToProto(message);
  MutexLock lock(&mu_);
  if (finished_ || end_.has_value()) return;
  if (!writing_) {
    queue_.push_back(std::move(response));
    writing_ = true;
    StartWrite(&queue_.front());
    return;
  }
  queued_bytes_ += response.ByteSizeLong();
  queue_.push_back(std::move(response));
  if (queue_.size() <= kMaxQueued && queued_bytes_ <= kMaxQueuedBytes) return;
  end_ = absl::ResourceExhaustedError(
      absl::StrCat(queue_.size(), " messages of ", queued_bytes_, " bytes wait, of at most ",
                   kMaxQueued, " and ", kMaxQueuedBytes, ": this agent does not read its stream"));
  FinishIfIdle();
}

void AgentStream::OnWriteDone(bool ok) {
  MutexLock lock(&mu_);
  writing_ = false;
  queue_.pop_front();
  if (!ok && !end_.has_value()) end_ = absl::CancelledError("the agent has gone");
  if (end_.has_value()) {
    queue_.clear();
    FinishIfIdle();
  } else if (!queue_.empty()) {
    queued_bytes_ -= queue_.front().ByteSizeLong();
    writing_ = true;
    // What waits behind it is to go out with it: a node of 8 is stopped by one packet, not by 8.
    grpc::WriteOptions options;
    if (queue_.size() > 1) options.set_buffer_hint();
    StartWrite(&queue_.front(), options);
  }
}

void AgentStream::End(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!end_.has_value()) end_ = status;
  FinishIfIdle();
}

void AgentStream::EndUnlessGreeted(absl::Duration limit) {
  if (said_hello_) return;
  End(absl::DeadlineExceededError(
      absl::StrCat("no hello within ", absl::FormatDuration(limit), " of the stream's opening")));
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
  if (!said_hello_) return;  // the engine has never heard of it
  // Refused only when the engine is full or has stopped; then silence says the same, later.
  (void)streams_->engine_->Post(CloseStream{id_}, nullptr);
}

void AgentStream::OnCancel() {
  PostClose();
  End(absl::CancelledError("the agent has gone"));
}

void AgentStream::OnDone() {
  PostClose();
  streams_->Remove(*this);  // gone, unless somebody holds it still
}

AgentStream* AgentStreams::Open(const std::string& peer) {
  std::shared_ptr<AgentStream> stream;
  absl::Status admitted;
  {
    MutexLock lock(&mu_);
    const StreamId id = next_++;
    stream = std::make_shared<AgentStream>(id, PeerHost(peer), this);
    admitted = Admit(stream->address());
    streams_[id] = stream;
    ++of_address_[stream->address()];
    opened_.push_back({id, clock_->Steady() + limits_.hello_limit});
  }
  if (admitted.ok()) {
    stream->Begin();
  } else {
    stream->End(admitted);
  }
  return stream.get();
}

absl::Status AgentStreams::Admit(const std::string& address) {
  if (streams_.size() >= static_cast<size_t>(limits_.max_streams)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "streams of agents: ", streams_.size(), " are open, of at most ", limits_.max_streams));
  }
  const auto found = of_address_.find(address);
  if (found != of_address_.end() && found->second >= limits_.max_streams_per_address) {
    return absl::ResourceExhaustedError(absl::StrCat("streams of agents at ", address, ": ",
                                                     found->second, " are open, of at most ",
                                                     limits_.max_streams_per_address));
  }
  return absl::OkStatus();
}

std::shared_ptr<AgentStream> AgentStreams::Find(StreamId id) {
  MutexLock lock(&mu_);
  const auto found = streams_.find(id);
  return found == streams_.end() ? nullptr : found->second;
}

void AgentStreams::Remove(const AgentStream& stream) {
  std::shared_ptr<AgentStream> removed;  // let go of outside of the lock
  MutexLock lock(&mu_);
  const auto found = streams_.find(stream.id());
  if (found == streams_.end()) return;
  removed = std::move(found->second);
  streams_.erase(found);
  const auto of_address = of_address_.find(stream.address());
  if (--of_address->second == 0) of_address_.erase(of_address);
}

void AgentStreams::NoteHeartbeatOf(std::shared_ptr<AgentStream> stream) {
  MutexLock lock(&beats_mu_);
  with_heartbeat_.push_back(std::move(stream));
}

void AgentStreams::Collect(std::vector<Heartbeat>* heartbeats) {
  {
    MutexLock lock(&beats_mu_);
    collecting_.swap(with_heartbeat_);
  }
  for (const auto& stream : collecting_) stream->TakeHeartbeat(heartbeats);
  collecting_.clear();

  const absl::Duration now = clock_->Steady();
  while (true) {
    std::shared_ptr<AgentStream> overdue;
    {
      MutexLock lock(&mu_);
      if (opened_.empty() || opened_.front().hello_until > now) return;
      const auto found = streams_.find(opened_.front().id);
      if (found != streams_.end()) overdue = found->second;
      opened_.pop_front();
    }
    if (overdue != nullptr) overdue->EndUnlessGreeted(limits_.hello_limit);
  }
}

int AgentStreams::num_open() {
  MutexLock lock(&mu_);
  return static_cast<int>(streams_.size());
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
