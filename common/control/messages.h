// Agent <-> trainer: one-line JSON messages over a socket pair (design 1). Everything carries the
// job's epoch; a message of another epoch is dropped by the receiver. Pure: encode and decode only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// Agent and trainer speak only when this is equal. What was added since version 1 is no reason for
// another: a reader takes a field that its older peer does not send as its default, ignores one
// that it does not know, and nobody sends a message to a peer of a revision without it.
inline constexpr int kControlProtocolVersion = 1;
inline constexpr int kControlRevision = 2;           // 2: probes, spares, snapshots, recovery
inline constexpr size_t kMaxControlLine = 16 << 20;  // bytes; a longer line ends the connection

// A numbered order to all trainers of a job (design 2.5). Numbers start at 1 and have no gaps.
struct Directive {
  // kReform: end the attempt at this step's boundary with the state in memory, say phase "yielded",
  // and wait for the next assignment (drain, replace, growth).
  // kCheckpointAndExit: leave with `exit_code` and the step `iteration`, which all ranks hold since
  // its result was rejected (docs/rerun.md); its beginning is saved with 16. Of no meaning to
  // whoever holds another step, or none.
  enum class Kind {
    kCheckpoint,
    kEvaluate,
    kStop,
    kCheckpointAndStop,
    kTrace,
    kReform,
    kCheckpointAndExit
  };
  int64_t number = 0;
  Kind kind = Kind::kCheckpoint;
  std::string reason;  // "requested by cancel", ...
  std::optional<int64_t> iterations =
      std::nullopt;       // kTrace: how many steps to trace, from the next one on
  int64_t iteration = 0;  // kCheckpointAndExit: the step, from 1 on
  int exit_code = 0;      // the same
  bool operator==(const Directive&) const = default;
};

// More would fill a trainer's memory, and nobody looks at them.
inline constexpr int64_t kMaxTracedIterations = 100;

// ---- agent -> trainer
struct AssignMessage {  // everything a rank needs to start: one message
  std::string job_id;
  int64_t epoch = 0;
  int rank = 0, world_size = 1;
  std::string spec_json;                 // the whole spec, validated
  std::string host_address;              // address of this worker as peers reach it
  std::string device;                    // "cpu" or "cuda:N"
  int num_threads = 1;                   // CPU threads of this trainer
  int64_t directives_through = 0;        // all directives up to this number were applied before
  std::vector<std::string> plugin_dirs;  // folders that the worker's operator allowed for `plugin`
  // Members of the epoch's first communicator beyond `world_size`: they hold state that ranks are
  // filled from, and leave when it is given (drain, replace). `rank` >= world_size: this is one.
  // rank -1: a spare: be warm, and wait for the next assignment.
  int num_helpers = 0;
  int buddy = -1;  // rank that keeps a copy of this one's snapshots; -1: nobody
  // File that outlives the trainer, where it keeps its snapshots: "/proc/<agent>/fd/<n>"; empty:
  // none.
  std::string snapshot_memory;
  int64_t ledger_through = 0;  // iterations that the coordinator's ledger holds
  std::string
      examine_json;  // not empty: this epoch reruns a step elsewhere (common/rerun/examination.h)
};
struct UniqueIdMessage {
  int64_t epoch = 0;
  std::string id;
};  // broadcast of rank 0's; hex
struct DirectiveMessage {
  int64_t epoch = 0;
  Directive directive;
};
struct AbortMessage {
  int64_t epoch = 0;
  std::string reason;
};  // abort the epoch's communicators, await the next assignment
struct ShutdownMessage {
  std::string reason;
};  // leave the process
// Are you alive, and where? Answered by the control thread at once, whatever the training thread
// does.
struct ProbeMessage {
  int64_t epoch = 0, request = 0;
};
struct StoreReplyMessage {
  int64_t request = 0;
  bool ok = false;
  std::string error;                                         // when not ok
  int error_code = 0;                                        // absl::StatusCode
  std::vector<std::pair<std::string, std::string>> entries;  // values in hex
};

// ---- trainer -> agent
struct HelloMessage {
  int64_t pid = 0;
  int version = kControlProtocolVersion;
  int revision = kControlRevision;  // of a trainer that does not say so: 1
};
struct PhaseMessage {
  int64_t epoch = 0;
  std::string phase;
  std::string detail;
};  // forming, loading, training, evaluating, saving, ...
struct PublishUniqueIdMessage {
  int64_t epoch = 0;
  std::string id;
};  // rank 0 only
struct StoreRequestMessage {
  int64_t request = 0, epoch = 0;
  enum class Op { kSet, kWaitPrefix } op = Op::kSet;
  std::string key, value;  // value in hex
  int count = 0;           // kWaitPrefix: keys to wait for
  int64_t limit_ms = 0;
};
// A piece of this rank's part of the trace that directive `directive` asked for, in order from
// offset 0 on; a trainer has one on its way at a time and waits for its StoreReplyMessage.
struct TracePieceMessage {
  int64_t request = 0, epoch = 0, directive = 0;
  int64_t offset = 0;  // bytes before it
  std::string data;    // at most kMaxTracePiece bytes, ASCII
  bool last = false;
  int64_t limit_ms = 0;
};
inline constexpr size_t kMaxTracePiece = 256 << 10;
// One committed step (fields of design 8 `metrics`). Sent by the rank that holds the reduced loss
// (last stage, dp_cp rank 0), others send none.
struct StepMessage {
  int64_t epoch = 0, iteration = 0, consumed_samples = 0;
  std::optional<double>
      lm_loss;            // none on a step whose loss is not finite: see `skipped`, `loss_text`
  std::string loss_text;  // "nan", "inf" when lm_loss is absent
  std::optional<double> grad_norm;
  std::optional<int64_t> num_zeros;   // in the gradients; with training.log_num_zeros_in_grad
  std::optional<double> params_norm;  // after the update; with training.log_params_norm
  // Of the MoE layers, those that the model has, over their coefficients (kStepSideLosses).
  std::optional<double> load_balancing_loss, seq_load_balancing_loss, global_load_balancing_loss,
      z_loss;
  double learning_rate = 0, loss_scale = 1, elapsed_ms = 0, tokens_per_s = 0, tflops_per_device = 0;
  bool skipped = false;
  double num_floating_point_operations_so_far = 0;
  int64_t memory_bytes = 0;       // peak of live tensors, counted by the allocator
  int64_t applied_directive = 0;  // highest directive applied so far
  int64_t global_batch_size = 0;
  std::map<std::string, double> timers_ms;  // "forward-backward", "optimizer", ... of this rank
};
// The side losses of a step by Megatron's names, which are the names in JSON and protos, too.
struct StepSideLoss {
  const char* name;
  std::optional<double> StepMessage::*value;
};
inline constexpr StepSideLoss kStepSideLosses[] = {
    {"load_balancing_loss", &StepMessage::load_balancing_loss},
    {"seq_load_balancing_loss", &StepMessage::seq_load_balancing_loss},
    {"global_load_balancing_loss", &StepMessage::global_load_balancing_loss},
    {"z_loss", &StepMessage::z_loss},
};
struct EvaluationMessage {
  int64_t epoch = 0, iteration = 0;
  std::string split;  // "valid" | "test"
  double lm_loss = 0, ppl = 0;
  bool final = false;  // at the end of the run
};
struct CheckpointMessage {
  int64_t epoch = 0, iteration = 0;
  std::string path;
  bool ok = false;
  std::string error;
  double elapsed_ms = 0;
};
struct EventMessage {
  int64_t epoch = 0;
  std::string kind, text;
};                    // anything worth an event: loaded a checkpoint, slow rank, ...
struct DoneMessage {  // this rank has finished
  int64_t epoch = 0;
  int exit_code = 0;  // 0 or 16, 17 (reference 13)
  std::string
      reason;  // "trained 300 iterations", "exit_interval", "stop directive 3: requested by cancel"
};
struct FailedMessage {  // this rank cannot go on; the process stays, waiting for its next
                        // assignment or shutdown
  int64_t epoch = 0;
  std::string reason;
  bool collective =
      false;  // failed inside a collective: a symptom of another rank's failure, most likely
};
// The last committed step, sent now and then by every rank (at most every 200 ms): a sign of life
// that heartbeats carry on. The step reports of one rank are the record; this is none.
struct ProgressMessage {
  int64_t epoch = 0, iteration = 0;
};

// Where a trainer is, in answer to a probe. `ops`: of each group that has an operation under way,
// or had one last.
struct OpArrival {
  std::string group;       // "world", "dp", ...
  std::vector<int> ranks;  // global ranks of the group
  int64_t sequence = 0;    // of the newest operation that this rank issued; 0: none
  std::string operation;   // "all_reduce 4096 x float"
  bool done = true;
  double age_ms = 0;  // since it was issued
  bool operator==(const OpArrival&) const = default;
};
struct ProbeReplyMessage {
  int64_t epoch = 0, request = 0, iteration = 0;
  std::string phase;
  double thread_cpu_ms = 0;  // of the training thread, so far: it rises while that computes
  std::vector<OpArrival> ops;
  bool operator==(const ProbeReplyMessage&) const = default;
};
// Rank 0, once all ranks have their state in a new epoch: where the job goes on, and what it cost.
struct RestoredMessage {
  int64_t epoch = 0, iteration = 0;
  std::string source;                // "live", "snapshot", "checkpoint", "beginning"
  std::string text;                  // for people: who was filled from whom
  double form_ms = 0, state_ms = 0;  // forming the communicators; restoring the state
  int64_t bytes = 0;                 // moved between ranks
};
// How a rank's time was spent since its last one, a step on average. At most every 10 s.
struct RankTimesMessage {
  int64_t epoch = 0, iteration = 0, steps = 0;
  double compute_ms = 0, communication_wait_ms = 0, data_ms = 0;
};
// A step under examination: what this rank saw of it (common/rerun/examination.h is its JSON).
struct ExamineMessage {
  int64_t epoch = 0, iteration = 0;
  std::string json;
};

using AgentToTrainer = std::variant<AssignMessage, UniqueIdMessage, DirectiveMessage, AbortMessage,
                                    ShutdownMessage, StoreReplyMessage, ProbeMessage>;
using TrainerToAgent =
    std::variant<HelloMessage, PhaseMessage, PublishUniqueIdMessage, StoreRequestMessage,
                 StepMessage, EvaluationMessage, CheckpointMessage, EventMessage, DoneMessage,
                 FailedMessage, ProgressMessage, TracePieceMessage, ProbeReplyMessage,
                 RestoredMessage, RankTimesMessage, ExamineMessage>;

// One line, ending in '\n'. Doubles keep all 17 digits.
std::string Encode(const AgentToTrainer& message);
std::string Encode(const TrainerToAgent& message);
// INVALID_ARGUMENT names what is wrong; unknown fields are ignored (a newer peer), an unknown type
// is an error.
absl::StatusOr<AgentToTrainer> DecodeAgentToTrainer(absl::string_view line);
absl::StatusOr<TrainerToAgent> DecodeTrainerToAgent(absl::string_view line);

}  // namespace muster
