// Pipeline schedules as data (reference 4): what each pipeline rank does in one step, in order. A
// pure function makes the lists, one executor runs any of them, and they can be printed and checked
// (schedule_check.h) without a GPU.
//
// Three schedules, chosen as Megatron does: pp = 1 no pipelining; pp > 1 one-forward-one-backward;
// pp > 1 with virtual stages interleaved 1F1B. Rank r's chunk c is global stage c * pp + r.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

struct ScheduleOp {
  enum class Kind {
    kForward,
    kBackward,
    kSendForward,   // output of `chunk` to the next stage
    kRecvForward,   // input of `chunk` from the previous stage
    kSendBackward,  // gradient of `chunk`'s input to the previous stage
    kRecvBackward,  // gradient of `chunk`'s output from the next stage
    kGradSync,      // grad_sync_func of `chunk`: start reducing its gradients; microbatch is -1
    kParamSync,     // param_sync_func of `chunk`: start gathering its parameters; microbatch is -1
  };
  Kind kind = Kind::kForward;
  int chunk = 0;
  int microbatch = 0;
  // Neighbouring sends and receives with the same number are one fused exchange: all are posted
  // together. Numbers rise from 0 along a list; -1 for what is not communication.
  int exchange = -1;
  // kBackward only: outside no_sync, so gradients are reduced as they become final. The hooks of
  // the bucketed wrapper do it; there is no kGradSync for this chunk then.
  bool sync = false;
  // kForward only: all layers of this pass are recomputed in its backward pass, not only those that
  // training.recompute_* names.
  bool recompute = false;
  bool operator==(const ScheduleOp&) const = default;
};

// "forward", "recv_backward", ...: the names of `muster schedule --json`.
const char* ScheduleOpName(ScheduleOp::Kind kind);

using RankSchedule = std::vector<ScheduleOp>;
using PipelineSchedule = std::vector<RankSchedule>;  // by pipeline rank

struct ScheduleOptions {
  int pp = 1;
  int virtual_pp = 1;  // model chunks a rank; 1: not interleaved
  int num_microbatches = 1;
  // microbatch_group_size_per_virtual_pipeline_stage; 0: pp.
  int microbatch_group_size = 0;
  bool forward_only = false;  // evaluation
  // Interleaved only: sends and receives run behind the computation; the executor posts an
  // exchange, goes on, and waits for a receive where the tensor is needed.
  bool overlap_p2p_comm = false;
  // With overlap_p2p_comm: in warm-up and cool-down, all ranks but the leading one (first for
  // forward, last for backward) post the receive of the next pass before they run this one.
  bool overlap_p2p_comm_warmup_flush = false;
  // Set: gradients (parameters) are reduced (gathered) by explicit kGradSync (kParamSync)
  // operations, placed so that they coincide over pipeline ranks (align_grad_reduce,
  // align_param_gather).
  bool has_grad_sync_func = false, has_param_sync_func = false;
  bool overlap_moe_expert_parallel_comm = false;  // one more warm-up step
  // Forward step k of a rank with w warm-up steps recomputes all layers when k mod (w + 1) is at
  // least this: of w + 1 passes in flight so many keep what they can. Not set: none is marked.
  std::optional<int> num_microbatches_with_partial_activation_checkpoints;
};

// INVALID_ARGUMENT names the rule (reference 4.3 and G4.10).
absl::Status CheckScheduleOptions(const ScheduleOptions& options);

// All ranks, or one of them.
absl::StatusOr<PipelineSchedule> MakePipelineSchedule(const ScheduleOptions& options);
absl::StatusOr<RankSchedule> MakeRankSchedule(const ScheduleOptions& options, int pipeline_rank);

// Interleaved: the order in which a rank's (microbatch, chunk) pairs run forward.
struct VirtualMicrobatch {
  int microbatch = 0, chunk = 0;
  bool operator==(const VirtualMicrobatch&) const = default;
};
std::vector<VirtualMicrobatch> InterleavedTable(int num_microbatches, int num_chunks,
                                                int group_size);

// Forward steps before the first backward one.
struct WarmupCount {
  int total = 0;     // virtual microbatches
  bool all = false;  // everything is warm-up
  int warmup = 0;
  int remaining = 0;  // steady steps
  bool operator==(const WarmupCount&) const = default;
};
WarmupCount CountWarmup(const ScheduleOptions& options, int pipeline_rank);

// "F0 sf+rb B0": sf/rf/sb/rb for sends and receives, a+b for one exchange, F1.0 (chunk.microbatch)
// with several chunks, GS0/PS0 for syncs of a chunk, B1! for a backward pass outside no_sync, F1*
// for a forward pass all of whose layers are recomputed.
std::string ScheduleText(const RankSchedule& schedule, int num_chunks);

// Most microbatches (of any chunk) whose forward pass is done and whose backward pass is not: how
// many sets of activations a rank holds at once.
int MaxInFlight(const RankSchedule& schedule);

// Idle share of the ideal time: (pp - 1) / (v * m) [Narayanan et al. 2021, section 2.2].
double BubbleFraction(const ScheduleOptions& options);

}  // namespace muster
