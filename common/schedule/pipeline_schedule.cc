#include "common/schedule/pipeline_schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/schedule/interleaved_schedule.h"
#include "common/schedule/schedule_builder.h"

namespace muster {
namespace {

using Kind = ScheduleOp::Kind;

RankSchedule NoPipelining(const ScheduleOptions& options) {
  ScheduleBuilder list;
  for (int i = 0; i < options.num_microbatches; ++i) {
    list.Forward(0, i);
    if (!options.forward_only) list.Backward(0, i, i == options.num_microbatches - 1);
  }
  return list.Take();
}

// Reference 4.2. With a grad_sync_func only the first stage, whose backward passes end last,
// reduces from within its last backward pass; the others wait for the end, so that all reduce
// together.
RankSchedule OneForwardOneBackward(const ScheduleOptions& options, int rank) {
  const bool first = rank == 0, last = rank == options.pp - 1;
  const WarmupCount count = CountWarmup(options, rank);
  const int warmup = count.warmup, remaining = count.remaining;
  const bool syncs_in_backward = !options.has_grad_sync_func || first;
  ScheduleBuilder list;
  auto recv_forward = [&](int i) { list.CommunicateIf(!first, Kind::kRecvForward, 0, i); };
  auto send_forward = [&](int i) { list.CommunicateIf(!last, Kind::kSendForward, 0, i); };
  auto recv_backward = [&](int i) { list.CommunicateIf(!last, Kind::kRecvBackward, 0, i); };
  auto send_backward = [&](int i) { list.CommunicateIf(!first, Kind::kSendBackward, 0, i); };

  for (int i = 0; i < warmup; ++i) {
    list.NewExchange();
    recv_forward(i);
    list.Forward(0, i, RecomputesAllLayers(options, warmup, i));
    list.NewExchange();
    send_forward(i);
  }
  list.NewExchange();
  if (remaining > 0) recv_forward(warmup);
  for (int i = 0; i < remaining; ++i) {
    const int forward = warmup + i;
    const bool last_step = i == remaining - 1;
    list.Forward(0, forward, RecomputesAllLayers(options, warmup, forward));
    list.NewExchange();
    send_forward(forward);
    if (options.forward_only) {
      list.NewExchange();
      if (!last_step) recv_forward(forward + 1);
      continue;
    }
    recv_backward(i);
    list.Backward(0, i, warmup == 0 && last_step && syncs_in_backward);
    list.NewExchange();
    send_backward(i);
    if (!last_step) recv_forward(forward + 1);
  }
  if (options.forward_only) return list.Take();
  for (int k = 0; k < warmup; ++k) {
    const int i = remaining + k;
    list.NewExchange();
    recv_backward(i);
    list.Backward(0, i, k == warmup - 1 && syncs_in_backward);
    list.NewExchange();
    send_backward(i);
  }
  if (!syncs_in_backward) list.Sync(Kind::kGradSync, 0);
  return list.Take();
}

const char* ShortName(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return "F";
    case Kind::kBackward:
      return "B";
    case Kind::kSendForward:
      return "sf";
    case Kind::kRecvForward:
      return "rf";
    case Kind::kSendBackward:
      return "sb";
    case Kind::kRecvBackward:
      return "rb";
    case Kind::kGradSync:
      return "GS";
    case Kind::kParamSync:
      return "PS";
  }
  MUSTER_CHECK(false);
}

}  // namespace

const char* ScheduleOpName(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return "forward";
    case Kind::kBackward:
      return "backward";
    case Kind::kSendForward:
      return "send_forward";
    case Kind::kRecvForward:
      return "recv_forward";
    case Kind::kSendBackward:
      return "send_backward";
    case Kind::kRecvBackward:
      return "recv_backward";
    case Kind::kGradSync:
      return "grad_sync";
    case Kind::kParamSync:
      return "param_sync";
  }
  MUSTER_CHECK(false);
}

absl::Status CheckScheduleOptions(const ScheduleOptions& o) {
  auto invalid = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (o.pp < 1 || o.virtual_pp < 1 || o.num_microbatches < 1 || o.microbatch_group_size < 0) {
    return invalid("pipeline_model_parallel_size=", o.pp,
                   ", virtual_pipeline_model_parallel_size=", o.virtual_pp,
                   " and num_microbatches=", o.num_microbatches, " must be at least 1");
  }
  if (o.overlap_p2p_comm_warmup_flush && !o.overlap_p2p_comm) {
    return invalid("overlap_p2p_comm_warmup_flush needs overlap_p2p_comm");
  }
  const std::optional<int>& partial = o.num_microbatches_with_partial_activation_checkpoints;
  if (partial.has_value() && (*partial < 0 || o.pp == 1)) {
    return invalid("num_microbatches_with_partial_activation_checkpoints=", *partial,
                   " must be at least 0 and needs pipeline_model_parallel_size above 1");
  }
  if (o.virtual_pp == 1) {
    if (o.overlap_p2p_comm) {
      return invalid("overlap_p2p_comm needs virtual pipeline stages (the interleaved schedule)");
    }
    return absl::OkStatus();
  }
  if (o.pp == 1) {
    return invalid("parallel.virtual_pipeline_model_parallel_size=", o.virtual_pp,
                   " needs pipeline_model_parallel_size above 1");
  }
  const int m = o.num_microbatches;
  const int group = o.microbatch_group_size == 0 ? o.pp : o.microbatch_group_size;
  if (group > m || group < o.pp) {
    return invalid("parallel.microbatch_group_size_per_virtual_pipeline_stage=", group,
                   " must be at least pipeline_model_parallel_size=", o.pp,
                   " and at most num_microbatches=", m);
  }
  if (m % group != 0 && m % group < o.pp) {
    return invalid("num_microbatches=", m, " leaves ", m % group,
                   " microbatches in the last group of "
                   "microbatch_group_size_per_virtual_pipeline_stage=",
                   group, "; that must be 0 or at least pipeline_model_parallel_size=", o.pp);
  }
  return absl::OkStatus();
}

absl::StatusOr<RankSchedule> MakeRankSchedule(const ScheduleOptions& options, int pipeline_rank) {
  RETURN_IF_ERROR(CheckScheduleOptions(options));
  MUSTER_CHECK(pipeline_rank >= 0 && pipeline_rank < options.pp);
  if (options.pp == 1) return NoPipelining(options);
  if (options.virtual_pp == 1) return OneForwardOneBackward(options, pipeline_rank);
  return InterleavedSchedule(options, pipeline_rank);
}

absl::StatusOr<PipelineSchedule> MakePipelineSchedule(const ScheduleOptions& options) {
  PipelineSchedule schedule;
  for (int rank = 0; rank < options.pp; ++rank) {
    ASSIGN_OR_RETURN(RankSchedule list, MakeRankSchedule(options, rank));
    schedule.push_back(std::move(list));
  }
  if (schedule.empty()) return CheckScheduleOptions(options);
  return schedule;
}

WarmupCount CountWarmup(const ScheduleOptions& o, int rank) {
  WarmupCount count;
  count.total = o.num_microbatches * o.virtual_pp;
  const int group = o.microbatch_group_size == 0 ? o.pp : o.microbatch_group_size;
  int warmup = o.pp - rank - 1;
  if (o.virtual_pp > 1) {
    // Twice the distance to the last stage: the last rank's first backward pass then finds the
    // gradient path filled. Each further chunk runs one group first.
    warmup = 2 * warmup + (o.virtual_pp - 1) * group;
    if (o.overlap_moe_expert_parallel_comm) ++warmup;
    if (o.forward_only) warmup = count.total;
  }
  count.all = warmup >= count.total;
  count.warmup = std::min(warmup, count.total);
  count.remaining = count.total - count.warmup;
  return count;
}

std::string ScheduleText(const RankSchedule& schedule, int num_chunks) {
  std::string text;
  for (size_t i = 0; i < schedule.size(); ++i) {
    const ScheduleOp& op = schedule[i];
    const bool fused = i > 0 && op.exchange >= 0 && op.exchange == schedule[i - 1].exchange;
    absl::StrAppend(&text, i == 0 ? "" : fused ? "+" : " ", ShortName(op.kind));
    if (op.kind == Kind::kForward || op.kind == Kind::kBackward) {
      if (num_chunks > 1) absl::StrAppend(&text, op.chunk, ".");
      absl::StrAppend(&text, op.microbatch, op.sync ? "!" : "", op.recompute ? "*" : "");
    }
    if (op.kind == Kind::kGradSync || op.kind == Kind::kParamSync) absl::StrAppend(&text, op.chunk);
  }
  return text;
}

int MaxInFlight(const RankSchedule& schedule) {
  int in_flight = 0, most = 0;
  for (const ScheduleOp& op : schedule) {
    if (op.kind == Kind::kForward) most = std::max(most, ++in_flight);
    if (op.kind == Kind::kBackward) --in_flight;
  }
  return most;
}

double BubbleFraction(const ScheduleOptions& options) {
  return static_cast<double>(options.pp - 1) /
         (static_cast<double>(options.virtual_pp) * options.num_microbatches);
}

}  // namespace muster
