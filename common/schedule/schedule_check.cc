#include "common/schedule/schedule_check.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

using Kind = ScheduleOp::Kind;

absl::Status Fault(const std::string& where, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("schedule: ", where, ": ", what));
}

// The rules of one rank's list.
class ListChecker {
 public:
  ListChecker(const ScheduleOptions& options, const PipelineSchedule& schedule, int rank)
      : options_(options),
        schedule_(schedule),
        rank_(rank),
        last_stage_(options.pp * options.virtual_pp - 1),
        bound_(MaxInFlightBound(options, rank)),
        chunks_(options.virtual_pp) {
    const size_t work = static_cast<size_t>(options.virtual_pp) * options.num_microbatches;
    for (std::vector<char>& done : done_) done.assign(work, 0);
  }

  absl::Status Run() {
    for (position_ = 0; position_ < schedule_[rank_].size(); ++position_) {
      RETURN_IF_ERROR(Check(schedule_[rank_][position_]));
    }
    return CheckComplete();
  }

 private:
  struct Chunk {
    int num_forward = 0, num_backward = 0;
    bool reduced = false, gathered = false;
  };

  absl::Status Fail(const std::string& what) const {
    return Fault(DescribeOp(schedule_, rank_, position_), what);
  }
  char& Done(Kind kind, const ScheduleOp& op) {
    return done_[static_cast<size_t>(kind)]
                [static_cast<size_t>(op.chunk) * options_.num_microbatches + op.microbatch];
  }

  absl::Status Check(const ScheduleOp& op) {
    if (op.chunk < 0 || op.chunk >= options_.virtual_pp) return Fail("no such chunk");
    if (op.kind == Kind::kGradSync) return Reduce(chunks_[op.chunk]);
    if (op.kind == Kind::kParamSync) return Gather(chunks_[op.chunk]);
    if (op.microbatch < 0 || op.microbatch >= options_.num_microbatches) {
      return Fail("no such microbatch");
    }
    if (options_.forward_only && (op.kind == Kind::kBackward || op.kind == Kind::kSendBackward ||
                                  op.kind == Kind::kRecvBackward)) {
      return Fail("this schedule has forward passes only");
    }
    if (op.recompute && (op.kind != Kind::kForward || options_.forward_only)) {
      return Fail("only forward passes of training can have their layers recomputed");
    }
    if (Done(op.kind, op)) return Fail("is done twice");
    Done(op.kind, op) = 1;
    if (op.kind == Kind::kForward) return Forward(op);
    if (op.kind == Kind::kBackward) return Backward(op);
    return Communicate(op);
  }

  int Stage(const ScheduleOp& op) const { return op.chunk * options_.pp + rank_; }

  absl::Status Forward(const ScheduleOp& op) {
    if (Stage(op) != 0 && !Done(Kind::kRecvForward, op)) return Fail("its input was not received");
    ++chunks_[op.chunk].num_forward;
    if (options_.forward_only || ++in_flight_ <= bound_) return absl::OkStatus();
    return Fail(absl::StrCat("holds activations of ", in_flight_, " passes, more than ", bound_));
  }

  absl::Status Backward(const ScheduleOp& op) {
    if (!Done(Kind::kForward, op)) return Fail("runs before its forward pass");
    if (Stage(op) != last_stage_ && !Done(Kind::kRecvBackward, op)) {
      return Fail("its gradient was not received");
    }
    --in_flight_;
    ++chunks_[op.chunk].num_backward;
    return op.sync ? Reduce(chunks_[op.chunk]) : absl::OkStatus();
  }

  absl::Status Communicate(const ScheduleOp& op) {
    const bool up = IsSend(op.kind) == IsForwardMessage(op.kind);  // to or from the next stage
    if (Stage(op) == (up ? last_stage_ : 0)) return Fail("there is no such stage beside it");
    const Kind pass = IsForwardMessage(op.kind) ? Kind::kForward : Kind::kBackward;
    if (IsSend(op.kind) && !Done(pass, op)) return Fail("is sent before it was computed");
    if (!IsSend(op.kind) && Done(pass, op)) return Fail("is received after its pass");
    return absl::OkStatus();
  }

  absl::Status Reduce(Chunk& chunk) {
    if (options_.forward_only) return Fail("this schedule has forward passes only");
    if (chunk.reduced) return Fail("the chunk's gradients are reduced twice");
    if (chunk.num_backward < options_.num_microbatches) {
      return Fail(absl::StrCat("gradients are reduced after ", chunk.num_backward, " of ",
                               options_.num_microbatches, " backward passes of the chunk"));
    }
    chunk.reduced = true;
    return absl::OkStatus();
  }

  absl::Status Gather(Chunk& chunk) const {
    if (chunk.gathered) return Fail("the chunk's parameters are gathered twice");
    if (chunk.num_forward > 0) return Fail("parameters are gathered after they were used");
    chunk.gathered = true;
    return absl::OkStatus();
  }

  absl::Status CheckComplete() {
    const std::string where = absl::StrCat("rank ", rank_);
    for (ScheduleOp op; op.chunk < options_.virtual_pp; ++op.chunk) {
      for (op.microbatch = 0; op.microbatch < options_.num_microbatches; ++op.microbatch) {
        for (const Kind kind :
             {Kind::kForward, Kind::kSendForward, Kind::kBackward, Kind::kSendBackward}) {
          const bool forward = kind == Kind::kForward || kind == Kind::kSendForward;
          if (!forward && options_.forward_only) continue;
          if (IsSend(kind) && Stage(op) == (forward ? last_stage_ : 0)) continue;
          if (Done(kind, op)) continue;
          return Fault(where, absl::StrCat(ScheduleOpName(kind), " chunk ", op.chunk,
                                           " microbatch ", op.microbatch, " is missing"));
        }
      }
      const Chunk& chunk = chunks_[op.chunk];
      const std::string name = absl::StrCat("chunk ", op.chunk);
      if (!options_.forward_only && !chunk.reduced) {
        return Fault(where, absl::StrCat("gradients of ", name, " are never reduced"));
      }
      const bool gathers = options_.has_param_sync_func && !options_.forward_only;
      if (options_.virtual_pp > 1 && gathers && !chunk.gathered) {
        return Fault(where, absl::StrCat("parameters of ", name, " are never gathered"));
      }
    }
    return absl::OkStatus();
  }

  const ScheduleOptions& options_;
  const PipelineSchedule& schedule_;
  const int rank_, last_stage_, bound_;
  size_t position_ = 0;
  int in_flight_ = 0;
  std::vector<Chunk> chunks_;
  // By kind of pass or message, then chunk * num_microbatches + microbatch.
  std::array<std::vector<char>, 6> done_;
};
static_assert(static_cast<int>(Kind::kRecvBackward) == 5);

// Positions of the ends of one channel in the list of one rank.
std::vector<size_t> EndsIn(const RankSchedule& list, Kind kind) {
  std::vector<size_t> positions;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind == kind) positions.push_back(i);
  }
  return positions;
}

// All messages of `send` from rank `from` with their receives.
absl::Status CheckChannel(const ScheduleOptions& options, const PipelineSchedule& schedule,
                          int from, Kind send) {
  const int to = PeerRank(options.pp, from, send);
  const bool forward = IsForwardMessage(send);
  const std::vector<size_t> sends = EndsIn(schedule[from], send);
  const std::vector<size_t> recvs =
      EndsIn(schedule[to], forward ? Kind::kRecvForward : Kind::kRecvBackward);
  for (size_t i = 0; i < std::min(sends.size(), recvs.size()); ++i) {
    const ScheduleOp& sent = schedule[from][sends[i]];
    const ScheduleOp& wanted = schedule[to][recvs[i]];
    const int stage = sent.chunk * options.pp + from + (forward ? 1 : -1);
    if (stage == wanted.chunk * options.pp + to && sent.microbatch == wanted.microbatch) continue;
    return Fault(DescribeOp(schedule, to, recvs[i]),
                 absl::StrCat("gets what ", DescribeOp(schedule, from, sends[i]), " sends"));
  }
  if (sends.size() > recvs.size()) {
    return Fault(DescribeOp(schedule, from, sends[recvs.size()]),
                 absl::StrCat("rank ", to, " never receives it"));
  }
  if (recvs.size() > sends.size()) {
    return Fault(DescribeOp(schedule, to, recvs[sends.size()]),
                 absl::StrCat("rank ", from, " never sends it"));
  }
  return absl::OkStatus();
}

absl::Status CheckRules(const ScheduleOptions& options, const PipelineSchedule& schedule) {
  if (static_cast<int>(schedule.size()) != options.pp) {
    return Fault("all ranks", absl::StrCat("there are ", schedule.size(), ", not ", options.pp));
  }
  for (int rank = 0; rank < options.pp; ++rank) {
    RETURN_IF_ERROR(ListChecker(options, schedule, rank).Run());
  }
  for (int rank = 0; rank < options.pp; ++rank) {
    for (const Kind send : {Kind::kSendForward, Kind::kSendBackward}) {
      RETURN_IF_ERROR(CheckChannel(options, schedule, rank, send));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int MaxInFlightBound(const ScheduleOptions& options, int pipeline_rank) {
  const int distance = options.pp - pipeline_rank - 1;
  if (options.virtual_pp == 1) return std::min(distance + 1, options.num_microbatches);
  const int group = options.microbatch_group_size == 0 ? options.pp : options.microbatch_group_size;
  const int warmup = 2 * distance + (options.virtual_pp - 1) * group +
                     (options.overlap_moe_expert_parallel_comm ? 1 : 0);
  return std::min(warmup + 1, options.virtual_pp * options.num_microbatches);
}

absl::Status CheckSchedule(const ScheduleOptions& options, const PipelineSchedule& schedule,
                           P2pModel model) {
  RETURN_IF_ERROR(CheckRules(options, schedule));
  return ExecuteSchedule(options, schedule, model).status();
}

absl::Status CheckSchedule(const ScheduleOptions& options, const PipelineSchedule& schedule) {
  RETURN_IF_ERROR(CheckRules(options, schedule));
  for (const P2pModel model :
       {P2pModel::kRendezvous, P2pModel::kBuffered, P2pModel::kAsynchronous}) {
    RETURN_IF_ERROR(ExecuteSchedule(options, schedule, model).status());
  }
  return absl::OkStatus();
}

}  // namespace muster
