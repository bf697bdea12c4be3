#include "common/schedule/schedule_execution.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

using Kind = ScheduleOp::Kind;

constexpr int64_t kNotArrived = -1;

// A posted send or receive that has not met its counterpart.
struct Posted {
  int rank = 0;
  size_t position = 0;
  int64_t time = 0;
};

// Messages of one direction from one rank to its neighbour, met in the order of posting. All that
// waits is on one side.
struct Channel {
  std::vector<Posted> waiting;
  size_t head = 0;
  bool waiting_are_sends = false;
  bool empty() const { return head == waiting.size(); }
};

class Executor {
 public:
  Executor(const ScheduleOptions& options, const PipelineSchedule& schedule, P2pModel model,
           PassSlots slots)
      : pp_(options.pp),
        num_microbatches_(options.num_microbatches),
        last_stage_(options.pp * options.virtual_pp - 1),
        schedule_(schedule),
        model_(model),
        slots_(slots),
        ranks_(schedule.size()),
        channels_(2 * schedule.size()),
        times_(schedule.size()) {
    const size_t work = static_cast<size_t>(options.virtual_pp) * options.num_microbatches;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].inputs.assign(work, kNotArrived);
      ranks_[rank].gradients.assign(work, kNotArrived);
      times_[rank].resize(schedule[rank].size());
    }
  }

  absl::StatusOr<ExecutionTimes> Run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int rank = 0; rank < pp_; ++rank) {
        while (Advance(rank)) progress = true;
      }
    }
    for (int rank = 0; rank < pp_; ++rank) {
      if (!Ended(rank)) return Deadlock();
    }
    return std::move(times_);
  }

 private:
  struct RankState {
    size_t next = 0;  // operation
    int64_t clock = 0;
    bool posted = false;    // the exchange at `next` has been posted
    int num_open = 0;       // its members that the rank still waits for
    int64_t met_until = 0;  // when the last of them met
    // When each tensor arrived, by chunk * num_microbatches + microbatch.
    std::vector<int64_t> inputs, gradients;
  };
  struct Wait {
    size_t position = 0;
    int peer = 0;
    const char* what = "";
  };

  bool Ended(int rank) const { return ranks_[rank].next == schedule_[rank].size(); }
  size_t WorkIndex(const ScheduleOp& op) const {
    return static_cast<size_t>(op.chunk) * num_microbatches_ + op.microbatch;
  }
  bool NeedsTensor(int rank, const ScheduleOp& op) const {
    return op.chunk * pp_ + rank != (op.kind == Kind::kForward ? 0 : last_stage_);
  }
  Channel& ChannelOf(int rank, Kind kind) {
    const int from = IsSend(kind) ? rank : PeerRank(pp_, rank, kind);
    return channels_[2 * static_cast<size_t>(from) + (IsForwardMessage(kind) ? 1 : 0)];
  }
  bool WaitsFor(Kind kind) const {
    return model_ == P2pModel::kRendezvous || (model_ == P2pModel::kBuffered && !IsSend(kind));
  }

  // Does the next operation of `rank` if it can be done now.
  bool Advance(int rank) {
    if (Ended(rank)) return false;
    RankState& state = ranks_[rank];
    const ScheduleOp& op = schedule_[rank][state.next];
    if (IsCommunication(op.kind)) return Exchange(rank);
    SlotSpan& span = times_[rank][state.next];
    if (op.kind == Kind::kGradSync || op.kind == Kind::kParamSync) {
      span = {state.clock, state.clock};
      ++state.next;
      return true;
    }
    const bool forward = op.kind == Kind::kForward;
    span.begin = state.clock;
    if (NeedsTensor(rank, op)) {
      const int64_t arrived = (forward ? state.inputs : state.gradients)[WorkIndex(op)];
      if (arrived == kNotArrived) return false;
      span.begin = std::max(span.begin, arrived);
    }
    span.end = state.clock = span.begin + (forward ? slots_.forward : slots_.backward);
    ++state.next;
    return true;
  }

  bool Exchange(int rank) {
    RankState& state = ranks_[rank];
    const RankSchedule& list = schedule_[rank];
    const size_t begin = state.next;
    size_t end = begin;
    while (end < list.size() && IsCommunication(list[end].kind) &&
           list[end].exchange == list[begin].exchange) {
      ++end;
    }
    if (!state.posted) {
      state.posted = true;
      state.met_until = state.clock;
      for (size_t i = begin; i < end; ++i) state.num_open += WaitsFor(list[i].kind);
      for (size_t i = begin; i < end; ++i) Post({rank, i, state.clock});
    }
    if (state.num_open > 0) return false;
    for (size_t i = begin; i < end; ++i) times_[rank][i] = {state.clock, state.met_until};
    state.clock = state.met_until;
    state.posted = false;
    state.next = end;
    return true;
  }

  void Post(const Posted& posted) {
    const Kind kind = schedule_[posted.rank][posted.position].kind;
    Channel& channel = ChannelOf(posted.rank, kind);
    if (channel.empty() || channel.waiting_are_sends == IsSend(kind)) {
      channel.waiting_are_sends = IsSend(kind);
      channel.waiting.push_back(posted);
      return;
    }
    const Posted other = channel.waiting[channel.head++];
    const Posted& receive = IsSend(kind) ? other : posted;
    const int64_t met = std::max(posted.time, other.time);
    const ScheduleOp& op = schedule_[receive.rank][receive.position];
    RankState& receiver = ranks_[receive.rank];
    (IsForwardMessage(kind) ? receiver.inputs : receiver.gradients)[WorkIndex(op)] = met;
    for (const Posted& end : {posted, other}) {
      if (!WaitsFor(schedule_[end.rank][end.position].kind)) continue;
      RankState& state = ranks_[end.rank];
      --state.num_open;
      state.met_until = std::max(state.met_until, met);
    }
  }

  // What a rank that is stuck waits for: the first member of its exchange that has not met, or the
  // tensor of its pass.
  Wait WaitOf(int rank) const {
    const ScheduleOp& op = schedule_[rank][ranks_[rank].next];
    if (!IsCommunication(op.kind)) {
      const bool forward = op.kind == Kind::kForward;
      const Kind receive = forward ? Kind::kRecvForward : Kind::kRecvBackward;
      return {ranks_[rank].next, PeerRank(pp_, rank, receive),
              forward ? "to send its input" : "to send its gradient"};
    }
    std::optional<Wait> wait;
    for (const Channel& channel : channels_) {
      for (size_t i = channel.head; i < channel.waiting.size(); ++i) {
        const Posted& posted = channel.waiting[i];
        if (posted.rank != rank || posted.position < ranks_[rank].next) continue;
        const Kind kind = schedule_[rank][posted.position].kind;
        if (!WaitsFor(kind) || (wait.has_value() && wait->position < posted.position)) continue;
        wait = {posted.position, PeerRank(pp_, rank, kind),
                IsSend(kind) ? "to receive it" : "to send it"};
      }
    }
    MUSTER_CHECK(wait.has_value());
    return *wait;
  }

  absl::Status Deadlock() const {
    std::string text = absl::StrCat("deadlock with ", P2pModelName(model_), " communication");
    const char* separator = ": ";
    int walker = -1;
    for (int rank = 0; rank < pp_; ++rank) {
      if (Ended(rank)) continue;
      const Wait wait = WaitOf(rank);
      absl::StrAppend(&text, separator, DescribeOp(schedule_, rank, wait.position),
                      " waits for rank ", wait.peer, " ", wait.what,
                      Ended(wait.peer) ? ", which has ended" : "");
      separator = "; ";
      walker = rank;
    }
    // Each stuck rank waits for one other, so pp steps lead into the cycle or to a rank that ended.
    for (int i = 0; i < pp_ && !Ended(walker); ++i) walker = WaitOf(walker).peer;
    if (!Ended(walker)) {
      absl::StrAppend(&text, "; cycle: rank ", walker);
      int rank = walker;
      do {
        rank = WaitOf(rank).peer;
        absl::StrAppend(&text, " -> ", rank);
      } while (rank != walker);
    }
    return absl::FailedPreconditionError(text);
  }

  const int pp_, num_microbatches_, last_stage_;
  const PipelineSchedule& schedule_;
  const P2pModel model_;
  const PassSlots slots_;
  std::vector<RankState> ranks_;
  std::vector<Channel> channels_;  // 2 * sending rank + (forward message)
  ExecutionTimes times_;
};

}  // namespace

const char* P2pModelName(P2pModel model) {
  switch (model) {
    case P2pModel::kRendezvous:
      return "rendezvous";
    case P2pModel::kBuffered:
      return "buffered";
    case P2pModel::kAsynchronous:
      return "asynchronous";
  }
  MUSTER_CHECK(false);
}

bool IsCommunication(Kind kind) {
  return kind == Kind::kSendForward || kind == Kind::kRecvForward || kind == Kind::kSendBackward ||
         kind == Kind::kRecvBackward;
}
bool IsSend(Kind kind) { return kind == Kind::kSendForward || kind == Kind::kSendBackward; }
bool IsForwardMessage(Kind kind) {
  return kind == Kind::kSendForward || kind == Kind::kRecvForward;
}

int PeerRank(int pp, int rank, Kind kind) {
  return (IsSend(kind) == IsForwardMessage(kind) ? rank + 1 : rank + pp - 1) % pp;
}

std::string DescribeOp(const PipelineSchedule& schedule, int rank, size_t position) {
  const ScheduleOp& op = schedule[rank][position];
  std::string text = absl::StrCat("rank ", rank, ", operation ", position, " (",
                                  ScheduleOpName(op.kind), " chunk ", op.chunk);
  if (op.kind != Kind::kGradSync && op.kind != Kind::kParamSync) {
    absl::StrAppend(&text, " microbatch ", op.microbatch);
  }
  return text + ")";
}

absl::StatusOr<ExecutionTimes> ExecuteSchedule(const ScheduleOptions& options,
                                               const PipelineSchedule& schedule, P2pModel model,
                                               PassSlots slots) {
  return Executor(options, schedule, model, slots).Run();
}

}  // namespace muster
