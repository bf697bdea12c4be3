#include "worker/train/trace_recorder.h"

#include <algorithm>

namespace muster {

TraceRecorder::TraceRecorder(int64_t capacity)
    : capacity_(capacity),
      slots_(std::make_unique<Slot[]>(capacity)),
      training_thread_(std::this_thread::get_id()) {}

void TraceRecorder::SetPass(int chunk, int microbatch) {
  chunk_.store(chunk, std::memory_order_relaxed);
  microbatch_.store(microbatch, std::memory_order_relaxed);
}

int TraceRecorder::ThisThread() {
  const std::thread::id id = std::this_thread::get_id();
  if (id == training_thread_) return 0;
  MutexLock lock(&mu_);
  return threads_.try_emplace(id, static_cast<int>(threads_.size()) + 1).first->second;
}

TraceRecorder::Slot* TraceRecorder::Claim(TraceKind kind, const char* name) {
  const int64_t place = next_.fetch_add(1, std::memory_order_relaxed);
  if (place >= capacity_) return nullptr;
  Slot& slot = slots_[place];
  slot.event.kind = kind;
  slot.event.name = name;
  slot.event.iteration = iteration_.load(std::memory_order_relaxed);
  slot.event.chunk = chunk_.load(std::memory_order_relaxed);
  slot.event.microbatch = microbatch_.load(std::memory_order_relaxed);
  return &slot;
}

int64_t TraceRecorder::Begin(TraceKind kind, const char* name, int unit) {
  Slot* const slot = Claim(kind, name);
  if (slot == nullptr) return -1;
  slot->event.unit = unit;
  slot->event.thread = ThisThread();
  slot->event.start_ns = SteadyNanos();
  return PlaceOf(slot);
}

void TraceRecorder::End(int64_t place) {
  if (place >= 0) slots_[place].end_ns.store(SteadyNanos(), std::memory_order_release);
}

int64_t TraceRecorder::OpStarted(const Start& start) {
  if (start.ranks.size() == 1) return -1;  // a no-op
  Slot* const slot = Claim(TraceKind::kOp, start.shape.op);
  if (slot == nullptr) return -1;
  TraceEvent& op = slot->event;
  op.dtype = start.shape.dtype;
  op.number = start.sequence;
  op.bytes_in = start.shape.bytes_in;
  op.bytes_out = start.shape.bytes_out;
  op.start_ns = SteadyNanos();
  MutexLock lock(&mu_);
  const auto [found, is_new] =
      group_of_.try_emplace(&start.ranks, static_cast<int>(groups_.size()));
  if (is_new) groups_.push_back({start.group, start.ranks});
  op.group = found->second;
  for (const OpTransfer& transfer : start.transfers) {
    (transfer.is_send ? op.bytes_in : op.bytes_out) += transfer.bytes;
    const int64_t number =
        messages_[{op.group, transfer.peer, transfer.channel, transfer.is_send}]++;
    Slot* const message = Claim(TraceKind::kTransfer, "message");
    if (message == nullptr) continue;
    message->event.is_send = transfer.is_send;
    message->event.group = op.group;
    message->event.peer = start.ranks[transfer.peer];
    message->event.channel = transfer.channel;
    message->event.op = PlaceOf(slot);
    message->event.number = number;
    message->event.bytes_in = transfer.bytes;
  }
  return PlaceOf(slot);
}

void TraceRecorder::OpFinished(int64_t op) {
  // A second end is the report of a failure.
  int64_t none = 0;
  slots_[op].end_ns.compare_exchange_strong(none, SteadyNanos(), std::memory_order_release);
}

void TraceRecorder::OpWaited(int64_t op, int64_t begin_ns) {
  const int64_t ended = slots_[op].end_ns.load(std::memory_order_acquire);
  if (ended != 0 && ended <= begin_ns) return;  // there was nothing to wait for
  Slot* const slot = Claim(TraceKind::kWait, slots_[op].event.name);
  if (slot == nullptr) return;
  slot->event.thread = ThisThread();
  slot->event.op = op;
  slot->event.start_ns = begin_ns;
  slot->end_ns.store(SteadyNanos(), std::memory_order_release);
}

TraceData TraceRecorder::Take() const {
  TraceData data;
  const int64_t claimed = next_.load(std::memory_order_relaxed);
  const int64_t kept = std::min(claimed, capacity_);
  data.num_dropped = claimed - kept;
  data.events.reserve(kept);
  for (int64_t i = 0; i < kept; ++i) {
    data.events.push_back(slots_[i].event);
    data.events.back().end_ns = slots_[i].end_ns.load(std::memory_order_acquire);
  }
  MutexLock lock(&mu_);
  data.groups = groups_;
  return data;
}

TracePass::TracePass(TraceRecorder* recorder, TraceKind kind, int chunk, int microbatch)
    : recorder_(recorder) {
  if (recorder_ == nullptr) return;
  recorder_->SetPass(chunk, microbatch);
  place_ = recorder_->Begin(kind, kind == TraceKind::kForward ? "forward" : "backward");
}

TracePass::~TracePass() {
  if (recorder_ == nullptr) return;
  recorder_->End(place_);
  recorder_->SetPass(-1, -1);
}

}  // namespace muster
