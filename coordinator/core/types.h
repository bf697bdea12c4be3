// The values that the coordinator's core takes and gives: events in, outcomes and actions out.
// Plain values without pointers or handles, so that an event can be written to a journal and
// handled again. What trainers report keeps the shape it has on the agent's control socket
// (common/control).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/control/device_check.h"
#include "common/control/messages.h"
#include "common/spec/spec_json.h"

namespace muster {

enum class DeviceKind { kCpu, kCuda };
const char* DeviceKindName(DeviceKind kind);  // "cpu", "cuda"

struct WorkerInfo {
  std::string name;
  std::string device;  // "cpu" or "cuda:N"
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;  // position on its node
  bool operator==(const WorkerInfo&) const = default;
};

// Which trainer a worker runs. rank -1: a spare of the job, without a trainer.
struct AssignmentRef {
  std::string worker, job_id;
  int64_t epoch = 0;
  int rank = 0;
  bool operator==(const AssignmentRef&) const = default;
};

using StreamId = uint64_t;   // names one open agent stream; given by the server, never used twice
using WaitToken = uint64_t;  // names one waiting rendezvous call; given by the server

// ---- reports of trainers
struct ExitedReport {
  std::optional<int> exit_code, signal;  // neither: it never ran, see launch_error
  std::string launch_error;
  std::vector<std::string> last_log_lines;
  bool oom_killed = false;  // its memory limit was hit: the kernel killed it, or a child of it
};
struct LogLines {
  std::vector<std::string> lines;
};
// What an agent found when it was asked by a ProbeOrder: the process from outside, and what its
// trainer answered within the agent's limit.
struct ProbeReport {
  int64_t request = 0;
  bool running = false;                    // the process is there
  std::string process_state;               // of /proc/PID/stat: "R", "S", "D", "T", ...
  double cpu_ms = 0;                       // of the whole process, so far
  std::optional<ProbeReplyMessage> reply;  // none: it did not answer in time
};
using ReportBody =
    std::variant<PhaseMessage, PublishUniqueIdMessage, StepMessage, EvaluationMessage,
                 CheckpointMessage, EventMessage, DoneMessage, FailedMessage, ExitedReport,
                 LogLines, RestoredMessage, RankTimesMessage, ExamineMessage, ProbeReport,
                 DeviceCheck>;  // DeviceCheck: of the worker, also after its trainer's ExitedReport
struct TrainerReport {
  AssignmentRef assignment;  // the epoch here counts, not the one inside the body
  ReportBody body;
};

// ---- events
struct RegisterAgent {
  std::string incarnation, node, version, address;
  int protocol_version = 1;
  int num_cpus = 1;
  std::vector<WorkerInfo> workers;
  std::vector<DeviceCheck> checks;  // of `workers`, in their order; empty: of an older agent
};
struct OpenStream {
  std::string incarnation;
  StreamId stream = 0;
};
struct CloseStream {
  StreamId stream = 0;
};
struct TrainerProgress {  // of one job on one node: see membership.proto
  std::string job_id;
  int64_t epoch = 0;
  int64_t iteration = 0;
};
struct Heartbeat {
  StreamId stream = 0;
  int64_t sequence = 0;
  std::vector<TrainerProgress> progress;
};
struct LeaveAgent {  // it says goodbye
  StreamId stream = 0;
  std::string reason;
};
struct ReportBatch {
  StreamId stream = 0;
  int64_t sequence = 0;
  std::vector<TrainerReport> reports;
};
struct SubmitJob {
  std::string spec_json, idempotency_key;
};
enum class CancelMode { kStop, kCheckpointAndStop, kKill };  // in order of strength
struct CancelJob {
  std::string job_id, reason;
  CancelMode mode = CancelMode::kStop;
};
struct RequestDirective {
  std::string job_id, reason;
  Directive::Kind kind = Directive::Kind::kCheckpoint;
  std::optional<int64_t> iterations = std::nullopt;  // kTrace, where it must be
};
struct DrainWorker {
  std::string worker;  // or a node: all of its workers
  bool undo = false;
};
struct CordonWorker {
  std::string worker;  // or a node: all of its workers
  bool undo = false;   // lifts a drain and a quarantine, too
};
// The rank moves to another worker at the end of a step.
struct ReplaceRank {
  std::string job_id, reason;
  int rank = 0;
  std::string worker;  // empty: a spare of the job, or an idle one
};
struct SetKey {
  std::string job_id;
  int64_t epoch = 0;
  std::string key, value;
};
struct WaitPrefix {  // answered by WaitDone
  WaitToken token = 0;
  std::string job_id;
  int64_t epoch = 0;
  std::string prefix;
  int count = 0;
  absl::Duration limit;
};
struct CancelWait {  // the caller has gone
  WaitToken token = 0;
};
// Whether the journal can be written. While it cannot, nothing is submitted or admitted.
struct StorageState {
  bool writable = true;
  std::string reason;  // "the journal's disk is full: ..."
};
using Event = std::variant<RegisterAgent, OpenStream, CloseStream, Heartbeat, LeaveAgent,
                           ReportBatch, SubmitJob, CancelJob, RequestDirective, DrainWorker,
                           CordonWorker, ReplaceRank, SetKey, WaitPrefix, CancelWait, StorageState>;

// ---- messages to agents
struct WelcomeMessage {
  int64_t reports_through = 0;
  std::vector<AssignmentRef> running;
};
struct LaunchMessage {
  std::string job_id;
  int64_t epoch = 0;
  std::string spec_json;
  int world_size = 1;
  int64_t directives_through = 0;
  int num_helpers = 0;         // members beyond world_size, which give their state and leave
  int64_t ledger_through = 0;  // iterations that the ledger holds
  std::string examine_json;    // not empty: a step is rerun elsewhere
  // All of this node. A trainer of the same job that lives on the worker is handed the assignment;
  // where none lives, a process is started. rank -1: a spare, that gets warm and waits.
  struct Assignment {
    std::string worker;
    int rank = 0;
    std::string host_address, device;
    int num_threads = 1;
    int buddy = -1;  // rank that keeps a copy of this one's snapshots; -1: nobody
  };
  std::vector<Assignment> assignments;
};
struct UniqueIdBroadcast {
  std::string job_id;
  int64_t epoch = 0;
  std::string id;
};
struct DirectiveBroadcast {
  std::string job_id;
  int64_t epoch = 0;
  Directive directive;
};
struct AbortBroadcast {
  std::string job_id;
  int64_t epoch = 0;
  std::string reason;
};
struct StopTrainerMessage {
  std::string worker, job_id;
  int64_t epoch = 0;
  absl::Duration grace;
  std::string reason;
};
struct AckMessage {
  int64_t through = 0;
};
// The job has ended: memory that was kept for it (snapshots) is free.
struct ForgetJobMessage {
  std::string job_id;
};
// Where are the trainers of this job on this node? Answered by a ProbeReport of each.
struct ProbeOrder {
  std::string job_id;
  int64_t epoch = 0;
  int64_t request = 0;
};
using AgentMessage =
    std::variant<WelcomeMessage, LaunchMessage, UniqueIdBroadcast, DirectiveBroadcast,
                 AbortBroadcast, StopTrainerMessage, AckMessage, ForgetJobMessage, ProbeOrder>;

// ---- actions
struct SendToAgent {
  StreamId stream = 0;
  AgentMessage message;
};
struct EndStream {
  StreamId stream = 0;
  absl::Status status;
};
using KeyValues = std::vector<std::pair<std::string, std::string>>;
struct WaitDone {
  WaitToken token = 0;
  absl::Status status;
  KeyValues entries;
};
struct JobChanged {  // whoever watches this job may have news
  std::string job_id;
};
using Action = std::variant<SendToAgent, EndStream, WaitDone, JobChanged>;

// ---- the answer to one event
struct RegisterReply {
  std::vector<std::string> workers;
  absl::Duration heartbeat_interval, heartbeat_timeout;
};
struct SubmitReply {
  std::string job_id;                 // empty when there are problems
  std::vector<SpecProblem> problems;  // all of them
};
struct DirectiveReply {
  int64_t number = 0;
  int64_t epoch = 0;  // of the attempt that it goes to
  int world_size = 0;
};
struct ReplaceReply {
  std::string from, to;  // workers
};
struct Outcome {
  absl::Status status;  // of the event; an event that fails changes nothing
  std::variant<std::monostate, RegisterReply, SubmitReply, DirectiveReply, ReplaceReply> reply;
  std::vector<Action> actions;  // to be carried out in this order
};

// "0-3,7": sorted ranks with ranges compressed; at most `max_ranges` of them, then "...".
std::string CompressRanks(std::vector<int> ranks, int max_ranges = 8);

}  // namespace muster
