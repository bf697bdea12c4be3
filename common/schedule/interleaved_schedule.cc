#include "common/schedule/interleaved_schedule.h"

#include <algorithm>
#include <optional>

#include "common/schedule/schedule_builder.h"

// Step k of the forward passes runs table[k]; step k of the backward passes runs the same
// microbatch on the mirrored chunk. All ranks walk the same table, each w steps of it ahead with
// its forward passes, so what arrives after step k follows from the table alone: for most ranks the
// input of step k + 1. The leading rank (first for forward, last for backward) gets what its far
// neighbour made pp - 1 steps ago, one chunk further.

namespace muster {
namespace {

using Kind = ScheduleOp::Kind;

class Interleaver {
 public:
  Interleaver(const ScheduleOptions& options, int rank)
      : options_(options),
        rank_(rank),
        first_(rank == 0),
        last_(rank == options.pp - 1),
        table_(InterleavedTable(
            options.num_microbatches, options.virtual_pp,
            options.microbatch_group_size == 0 ? options.pp : options.microbatch_group_size)),
        count_(CountWarmup(options, rank)),
        synced_(options.virtual_pp, false) {}

  RankSchedule Make() {
    if (SyncsParams()) {
      list_.Sync(Kind::kParamSync, 0);
      list_.Sync(Kind::kParamSync, 1);
    }
    list_.NewExchange();
    list_.CommunicateIf(!first_, Kind::kRecvForward, 0, table_[0].microbatch);
    Warmup();
    for (int k = 0; k < count_.remaining; ++k) Steady(k);
    if (options_.forward_only) return list_.Take();
    Cooldown();
    if (options_.has_grad_sync_func) {
      for (int chunk = 0; chunk < options_.virtual_pp; ++chunk) {
        if (!synced_[chunk]) list_.Sync(Kind::kGradSync, chunk);
      }
    }
    return list_.Take();
  }

 private:
  bool SyncsParams() const { return options_.has_param_sync_func && !options_.forward_only; }
  int BackwardChunk(int k) const { return options_.virtual_pp - 1 - table_[k].chunk; }

  // What is received after forward (backward) step k, if anything.
  std::optional<VirtualMicrobatch> ForwardArrival(int k) const {
    if (!first_) return table_[k + 1];
    if (k < options_.pp - 1) return std::nullopt;
    const VirtualMicrobatch& made = table_[k - (options_.pp - 1)];
    if (made.chunk == options_.virtual_pp - 1) return std::nullopt;
    return VirtualMicrobatch{made.microbatch, made.chunk + 1};
  }
  std::optional<VirtualMicrobatch> BackwardArrival(int k) const {
    if (!last_) return VirtualMicrobatch{table_[k + 1].microbatch, BackwardChunk(k + 1)};
    if (k < options_.pp - 1) return std::nullopt;
    const int made = k - (options_.pp - 1);
    if (BackwardChunk(made) == 0) return std::nullopt;
    return VirtualMicrobatch{table_[made].microbatch, BackwardChunk(made) - 1};
  }

  void Forward(int k) {
    const int ahead = k + rank_;  // so that all ranks gather a chunk's parameters together
    if (SyncsParams() && ahead < count_.total && table_[ahead].microbatch == 0) {
      const int chunk = table_[ahead].chunk + 1;
      if (chunk > 1 && chunk < options_.virtual_pp) list_.Sync(Kind::kParamSync, chunk);
    }
    list_.Forward(table_[k].chunk, table_[k].microbatch,
                  RecomputesAllLayers(options_, count_.warmup, k));
  }
  void Backward(int k) {
    const int last_microbatch = options_.num_microbatches - 1;
    const bool final_gradients = table_[k].microbatch == last_microbatch;
    list_.Backward(BackwardChunk(k), table_[k].microbatch,
                   final_gradients && !options_.has_grad_sync_func);
    if (!options_.has_grad_sync_func) return;
    const int behind = k - rank_;  // so that all ranks reduce a chunk's gradients together
    if (behind >= 0 && table_[behind].microbatch == last_microbatch) {
      list_.Sync(Kind::kGradSync, BackwardChunk(behind));
      synced_[BackwardChunk(behind)] = true;
    }
  }

  void SendForward(int k) {
    const bool final_stage = last_ && table_[k].chunk == options_.virtual_pp - 1;
    list_.CommunicateIf(!final_stage, Kind::kSendForward, table_[k].chunk, table_[k].microbatch);
  }
  void SendBackward(int k) {
    const bool first_stage = first_ && BackwardChunk(k) == 0;
    list_.CommunicateIf(!first_stage, Kind::kSendBackward, BackwardChunk(k), table_[k].microbatch);
  }
  void RecvForward(int k) {
    if (auto arrival = ForwardArrival(k)) {
      list_.CommunicateIf(true, Kind::kRecvForward, arrival->chunk, arrival->microbatch);
    }
  }
  void RecvBackward(int k) {
    if (auto arrival = BackwardArrival(k)) {
      list_.CommunicateIf(true, Kind::kRecvBackward, arrival->chunk, arrival->microbatch);
    }
  }
  // The gradient of backward step 0; the last rank's comes from its own loss.
  void RecvFirstGradient() {
    list_.CommunicateIf(!last_, Kind::kRecvBackward, BackwardChunk(0), table_[0].microbatch);
  }

  void Warmup() {
    const bool receives_ahead = options_.overlap_p2p_comm_warmup_flush && !first_;
    for (int k = 0; k < count_.warmup; ++k) {
      const bool more = k < count_.total - 1;
      list_.NewExchange();
      if (more && receives_ahead) RecvForward(k);
      Forward(k);
      list_.NewExchange();
      SendForward(k);
      if (more && !receives_ahead) RecvForward(k);
      if (k == count_.warmup - 1 && !options_.forward_only && !count_.all) {
        if (options_.overlap_p2p_comm) list_.NewExchange();
        RecvFirstGradient();
      }
    }
  }

  void Steady(int k) {
    const int forward = k + count_.warmup;
    const bool more_forward = k < count_.remaining - 1;
    Forward(forward);
    if (options_.overlap_p2p_comm) {
      list_.NewExchange();
      SendForward(forward);
      if (more_forward) RecvForward(forward);
      Backward(k);
      list_.NewExchange();
      SendBackward(k);
      RecvBackward(k);
      return;
    }
    Backward(k);
    list_.NewExchange();  // one exchange with both neighbours, both ways
    SendForward(forward);
    SendBackward(k);
    if (more_forward) RecvForward(forward);
    RecvBackward(k);
  }

  void Cooldown() {
    if (count_.all) {
      list_.NewExchange();
      RecvFirstGradient();
    }
    const bool receives_ahead = options_.overlap_p2p_comm_warmup_flush && !last_;
    for (int k = count_.remaining; k < count_.total; ++k) {
      const bool more = k < count_.total - 1;
      list_.NewExchange();
      if (more && receives_ahead) RecvBackward(k);
      Backward(k);
      list_.NewExchange();
      SendBackward(k);
      if (more && !receives_ahead) RecvBackward(k);
    }
  }

  const ScheduleOptions options_;
  const int rank_;
  const bool first_, last_;
  const std::vector<VirtualMicrobatch> table_;
  const WarmupCount count_;
  std::vector<bool> synced_;  // by chunk
  ScheduleBuilder list_;
};

}  // namespace

std::vector<VirtualMicrobatch> InterleavedTable(int num_microbatches, int num_chunks,
                                                int group_size) {
  std::vector<VirtualMicrobatch> table;
  table.reserve(static_cast<size_t>(num_microbatches) * num_chunks);
  for (int begin = 0; begin < num_microbatches; begin += group_size) {
    const int end = std::min(begin + group_size, num_microbatches);
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      for (int microbatch = begin; microbatch < end; ++microbatch) {
        table.push_back({microbatch, chunk});
      }
    }
  }
  return table;
}

RankSchedule InterleavedSchedule(const ScheduleOptions& options, int pipeline_rank) {
  return Interleaver(options, pipeline_rank).Make();
}

}  // namespace muster
