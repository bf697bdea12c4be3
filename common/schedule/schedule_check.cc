#include "common/schedule/schedule_check.h"

#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

using Kind = ScheduleOp::Kind;
using Work = std::pair<int, int>;  // (chunk, microbatch)

bool IsCommunication(Kind kind) {
  return kind == Kind::kSendForward || kind == Kind::kRecvForward || kind == Kind::kSendBackward ||
         kind == Kind::kRecvBackward;
}

std::string Describe(const ScheduleOp& op) {
  return absl::StrCat(ScheduleOpName(op.kind), " chunk ", op.chunk, " microbatch ", op.microbatch);
}

// One posted send or receive, waiting for its counterpart. `work` is the receiver's.
struct Posted {
  int rank;
  Work work;
};
// Messages of one direction between two ranks arrive in the order in which they were sent.
struct Channel {
  std::deque<Posted> sends, recvs;
};

class Checker {
 public:
  Checker(const ScheduleOptions& options, const PipelineSchedule& schedule, P2pModel model)
      : options_(options), schedule_(schedule), model_(model), ranks_(schedule.size()) {}

  absl::Status Run() {
    if (static_cast<int>(schedule_.size()) != options_.pp) {
      return Fail(absl::StrCat("the schedule has ", schedule_.size(), " ranks, not ", options_.pp));
    }
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        while (true) {
          ASSIGN_OR_RETURN(const bool advanced, Advance(static_cast<int>(rank)));
          if (!advanced) break;
          progress = true;
        }
      }
    }
    return CheckEnd();
  }

 private:
  struct RankState {
    size_t next = 0;                   // operation
    bool posted = false;               // the exchange at `next` has been posted
    int num_open = 0;                  // members of posted exchanges that have not met (rendezvous)
    std::set<Work> inputs, gradients;  // received, not yet used
    std::set<Work> forward_done, backward_done;
  };

  static absl::Status Fail(const std::string& message) {
    return absl::FailedPreconditionError(absl::StrCat("schedule: ", message));
  }
  absl::Status Fail(int rank, const ScheduleOp& op, const std::string& message) const {
    return Fail(absl::StrCat("rank ", rank, ", ", Describe(op), ": ", message));
  }

  int Stage(int rank, int chunk) const { return chunk * options_.pp + rank; }
  int LastStage() const { return options_.pp * options_.virtual_pp - 1; }

  // Does the next operation of `rank` if it can be done now.
  absl::StatusOr<bool> Advance(int rank) {
    RankState& state = ranks_[rank];
    const RankSchedule& list = schedule_[rank];
    if (state.next == list.size()) return false;
    const ScheduleOp& op = list[state.next];
    if (IsCommunication(op.kind)) return Exchange(rank);
    if (op.kind == Kind::kGradSync || op.kind == Kind::kParamSync) {
      ++state.next;
      return true;
    }
    const Work work{op.chunk, op.microbatch};
    if (op.chunk < 0 || op.chunk >= options_.virtual_pp || op.microbatch < 0 ||
        op.microbatch >= options_.num_microbatches) {
      return Fail(rank, op, "no such chunk or microbatch");
    }
    const int stage = Stage(rank, op.chunk);
    if (op.kind == Kind::kForward) {
      if (stage != 0 && state.inputs.erase(work) == 0) return Wait(rank, op, "its input");
      if (!state.forward_done.insert(work).second) return Fail(rank, op, "runs twice");
    } else {
      if (!state.forward_done.contains(work)) return Fail(rank, op, "runs before its forward pass");
      if (stage != LastStage() && state.gradients.erase(work) == 0) {
        return Wait(rank, op, "its gradient");
      }
      if (!state.backward_done.insert(work).second) return Fail(rank, op, "runs twice");
    }
    ++state.next;
    return true;
  }

  // A tensor that has not come: with rendezvous it never will, all exchanges before are over.
  absl::StatusOr<bool> Wait(int rank, const ScheduleOp& op, const char* what) const {
    if (model_ == P2pModel::kRendezvous) {
      return Fail(rank, op, absl::StrCat(what, " has not been received"));
    }
    return false;
  }

  absl::StatusOr<bool> Exchange(int rank) {
    RankState& state = ranks_[rank];
    const RankSchedule& list = schedule_[rank];
    size_t end = state.next;
    while (end < list.size() && IsCommunication(list[end].kind) &&
           list[end].exchange == list[state.next].exchange) {
      ++end;
    }
    if (!state.posted) {
      for (size_t i = state.next; i < end; ++i) {
        ++state.num_open;
        RETURN_IF_ERROR(Post(rank, list[i]));
      }
      state.posted = true;
    }
    if (model_ == P2pModel::kRendezvous && state.num_open > 0) return false;
    state.posted = false;
    state.next = end;
    return true;
  }

  absl::Status Post(int rank, const ScheduleOp& op) {
    const bool send = op.kind == Kind::kSendForward || op.kind == Kind::kSendBackward;
    const bool forward = op.kind == Kind::kSendForward || op.kind == Kind::kRecvForward;
    const Work work{op.chunk, op.microbatch};
    if (send &&
        !(forward ? ranks_[rank].forward_done : ranks_[rank].backward_done).contains(work)) {
      return Fail(rank, op, "is sent before it was computed");
    }
    const int stage = Stage(rank, op.chunk);
    const int peer_stage = forward == send ? stage + 1 : stage - 1;
    if (peer_stage < 0 || peer_stage > LastStage()) return Fail(rank, op, "has no peer stage");
    const int peer = peer_stage % options_.pp;
    if (send) {
      Channel& channel = channels_[{rank, peer, forward}];
      channel.sends.push_back({rank, {peer_stage / options_.pp, op.microbatch}});
      return Match(channel, forward);
    }
    Channel& channel = channels_[{peer, rank, forward}];
    channel.recvs.push_back({rank, work});
    return Match(channel, forward);
  }

  absl::Status Match(Channel& channel, bool forward) {
    if (channel.sends.empty() || channel.recvs.empty()) return absl::OkStatus();
    const Posted sent = channel.sends.front(), wanted = channel.recvs.front();
    channel.sends.pop_front();
    channel.recvs.pop_front();
    if (sent.work != wanted.work) {
      return Fail(absl::StrCat("rank ", wanted.rank, " waits for chunk ", wanted.work.first,
                               " microbatch ", wanted.work.second, ", rank ", sent.rank,
                               " sends chunk ", sent.work.first, " microbatch ", sent.work.second));
    }
    RankState& receiver = ranks_[wanted.rank];
    (forward ? receiver.inputs : receiver.gradients).insert(wanted.work);
    --receiver.num_open;
    --ranks_[sent.rank].num_open;
    return absl::OkStatus();
  }

  absl::Status CheckEnd() const {
    std::string stuck;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const RankState& state = ranks_[rank];
      if (state.next < schedule_[rank].size()) {
        absl::StrAppend(&stuck, stuck.empty() ? "" : "; ", "rank ", rank, " at ",
                        Describe(schedule_[rank][state.next]));
      }
    }
    if (!stuck.empty()) return Fail(absl::StrCat("deadlock: ", stuck));
    const size_t expected =
        static_cast<size_t>(options_.num_microbatches) * static_cast<size_t>(options_.virtual_pp);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const RankState& state = ranks_[rank];
      if (state.forward_done.size() != expected ||
          state.backward_done.size() != (options_.forward_only ? 0 : expected)) {
        return Fail(absl::StrCat("rank ", rank, " runs ", state.forward_done.size(),
                                 " forward and ", state.backward_done.size(),
                                 " backward passes, not ", expected));
      }
      if (state.num_open > 0 || !state.inputs.empty() || !state.gradients.empty()) {
        return Fail(absl::StrCat("rank ", rank, " has messages left over"));
      }
    }
    return absl::OkStatus();
  }

  const ScheduleOptions& options_;
  const PipelineSchedule& schedule_;
  const P2pModel model_;
  std::vector<RankState> ranks_;
  std::map<std::tuple<int, int, bool>, Channel> channels_;  // (from, to, forward)
};

}  // namespace

absl::Status CheckSchedule(const ScheduleOptions& options, const PipelineSchedule& schedule,
                           P2pModel model) {
  return Checker(options, schedule, model).Run();
}

absl::Status CheckSchedule(const ScheduleOptions& options, const PipelineSchedule& schedule) {
  return CheckSchedule(options, schedule,
                       options.overlap_p2p_comm ? P2pModel::kAsynchronous : P2pModel::kRendezvous);
}

}  // namespace muster
