// A node's agent as a pure machine: events in, actions out. It knows no process, no socket and no
// clock; worker/agent carries out its actions and brings it the events. Not thread-safe.
//
// One worker (a device or CPU slot) is in one of these states:
//
//            (1)             (2)              (4)
//   idle ----------> launching ----> training ----> stopping
//    ^                   |    (3)       |   (5)        |
//    +-------------------+--------------+--------------+
//
//   1 a Launch names it: the trainer is to be started (a run, numbered).
//   2 the trainer said hello: it gets its assignment, then whatever came meanwhile.
//   3 the launch failed, or the trainer ended: reported as exited, with its last log lines.
//   4 a StopTrainer, a Welcome that does not list it, a new incarnation or the agent's own end: it
//     is asked to leave and killed after a grace. Also from launching.
//   5 the trainer ended. Reported, unless the incarnation that launched it is over.
//
// Recovery: a Launch of a newer epoch of the same job takes the place of the older assignment,
// whose process goes on (a survivor, or a warm spare: rank -1). If that process ends before it has
// said anything of the newer epoch, the older assignment is reported as exited and a new process
// gets the newer one. A Launch that finds a trainer stopping waits for its end. A Welcome that
// lists a newer epoch than the trainer's leaves that alone: its Launch follows.
//
// Fences: an order whose job or epoch is not the worker's changes nothing; a trainer's message of
// another epoch is dropped; an event of an older run of the worker is dropped. The coordinator
// repeats after a reconnection what may have been lost: what was received before is ignored. Every
// assignment that was launched and not replaced is reported as exited exactly once per incarnation.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/control/messages.h"
#include "worker/core/agent_messages.h"
#include "worker/core/report_buffer.h"
#include "worker/core/snapshot_memory_book.h"

namespace muster {

// ---- events, besides the coordinator's orders
struct StreamLostEvent {};       // the stream broke; reports wait from now on
struct IncarnationOverEvent {};  // the coordinator knows this incarnation as over: start afresh
struct RunEvent {                // what became of run `run` of a worker
  std::string worker;
  int64_t run = 0;
  struct Started {
    int64_t pid = 0;
  };
  struct LogLine {
    std::string line;
  };
  struct Garbage {  // a control line that could not be read
    std::string error;
  };
  struct Note {  // of the agent itself: an event of the job
    std::string kind, text;
  };
  struct ProcessSeen {  // answer to LookAtProcessAction
    int64_t request = 0;
    bool running = false;
    std::string state;  // the letter of /proc/PID/stat
    double cpu_ms = 0;
  };
  // It is ending like this, and has said its last word; what it holds is not free yet. At most one.
  struct Dying {
    TrainerExited exit;
  };
  // TrainerExited: it ended, or (launch_error) could not be started. Comes last, once a run.
  std::variant<Started, TrainerToAgent, LogLine, Garbage, Dying, TrainerExited, StoreReplyMessage,
               Note, ProcessSeen>
      what;
};
struct DeviceCheckedEvent {  // answer to CheckDeviceAction
  AssignmentKey assignment;
  int rank = 0;
  DeviceCheck check;
};
struct TerminateEvent {};  // SIGTERM of the agent; the second one means now
struct TickEvent {};       // time has passed: see NextWake
using AgentEvent = std::variant<CoordinatorOrder, StreamLostEvent, IncarnationOverEvent, RunEvent,
                                DeviceCheckedEvent, TerminateEvent, TickEvent>;

// ---- actions
struct StartTrainerAction {  // check the spec's paths, then start the process
  std::string worker;
  int64_t run = 0;
  std::shared_ptr<const LaunchOrder> launch;
  LaunchOrder::Assignment assignment;  // num_threads resolved
};
struct SendToTrainerAction {
  std::string worker;
  int64_t run = 0;
  AgentToTrainer message;
  int64_t snapshot_memory = 0;  // whose path is to stand in the AssignMessage; 0: none
};
struct SignalTrainerAction {  // SIGTERM: checkpoint and exit (training.exit_signal_handler)
  std::string worker;
  int64_t run = 0;
};
struct EndTrainerAction {  // close its control socket and kill it after the grace
  std::string worker;
  int64_t run = 0;
  absl::Duration grace;
  std::string reason;
};
struct StoreRequestAction {  // ask the rendezvous service; the answer is RunEvent's StoreReply
  std::string worker;
  int64_t run = 0;
  std::string job_id;
  StoreRequestMessage request;
};
struct TracePieceAction {  // bring it to the coordinator; the answer is RunEvent's StoreReply
  std::string worker;
  int64_t run = 0;
  std::string job_id;
  int rank = 0;
  TracePieceMessage piece;
};
struct LookAtProcessAction {  // state and CPU time; the answer is RunEvent's ProcessSeen
  std::string worker;
  int64_t run = 0, request = 0;
};
struct FreeSnapshotMemoryAction {
  int64_t id = 0;
};
struct CheckDeviceAction {  // in the background, after this assignment's trainer crashed
  AssignmentKey assignment;
  int rank = 0;
};
struct SendBatchAction {
  std::shared_ptr<const NodeReportBatch> batch;
};
struct NewIncarnationAction {  // register with a new incarnation
  std::string reason;
};
struct ExitAgentAction {  // nothing runs any more: leave
  bool goodbye = false;   // all is reported and the stream is open: say so first
};
using AgentAction = std::variant<StartTrainerAction, SendToTrainerAction, SignalTrainerAction,
                                 EndTrainerAction, StoreRequestAction, TracePieceAction,
                                 LookAtProcessAction, FreeSnapshotMemoryAction, CheckDeviceAction,
                                 SendBatchAction, NewIncarnationAction, ExitAgentAction>;

class AgentMachine {
 public:
  enum class State { kIdle, kLaunching, kTraining, kStopping };

  struct Options {
    std::vector<std::string> workers;
    std::vector<std::string> plugin_dirs;
    int default_num_threads = 1;  // of a trainer whose assignment names none
    absl::Duration hello_limit = absl::Minutes(2);
    absl::Duration terminate_grace = absl::Seconds(60);  // for a checkpoint after SIGTERM
    absl::Duration leave_grace = absl::Seconds(5);       // between "leave" and the kill
    absl::Duration farewell_limit = absl::Seconds(2);    // for the last acknowledgements
    // After a trainer's kill was ordered, or after the second SIGTERM: then the agent leaves,
    // whatever still hangs (a file system, a process that cannot die).
    absl::Duration hang_limit = absl::Seconds(10);
    // For a trainer's own answer to a probe; then its process is looked at without it.
    absl::Duration probe_limit = absl::Milliseconds(400);
    SnapshotMemoryBook::Options snapshot_memories;
    ReportBuffer::Options reports;
  };

  explicit AgentMachine(Options options);

  std::vector<AgentAction> Handle(const AgentEvent& event, absl::Duration now);
  // When a TickEvent is due, if nothing comes before.
  std::optional<absl::Duration> NextWake() const;

  State state(const std::string& worker) const { return workers_.at(worker).state; }
  // Of the jobs whose trainers run here and have committed a step, sorted by job.
  std::vector<JobProgress> Progress() const;

 private:
  // One assignment of a worker, and what came for it.
  struct Attempt {
    std::shared_ptr<const LaunchOrder> launch;
    LaunchOrder::Assignment assignment;
    bool aborted = false, has_unique_id = false;
    // Until the trainer says hello; of a survivor, also until it speaks of this epoch.
    std::vector<AgentToTrainer> queued;
  };
  struct Probe {  // under way
    int64_t request = 0;
    std::optional<absl::Duration> due;  // of its answer; none: what its process looks like is all
    std::optional<ProbeReplyMessage> reply;
  };
  struct Worker {
    std::string name;
    State state = State::kIdle;
    int64_t run = 0;                // of the current or last trainer
    Attempt attempt;                // but for kIdle
    std::optional<Attempt> former;  // what a survivor had before, until it speaks of `attempt`
    std::optional<Attempt> next;    // only in kStopping: to be started at the trainer's end
    int64_t pid = 0;
    int revision = 1;         // of the control protocol, as the trainer speaks it
    bool report_exit = true;  // false when its incarnation is over
    bool dying = false;       // its end is reported, and still to come
    bool done = false;        // its trainer has reported done or failed
    int64_t iteration = 0;    // last committed one of this epoch
    std::optional<Probe> probe;
    std::optional<absl::Duration> hello_due;
    std::string stop_reason;
    // What was launched here in this incarnation, the last ones.
    struct Launched {
      std::string job_id;
      int64_t epoch = 0;
      bool as_spare = false;
    };
    std::deque<Launched> received;
    // In this epoch or a newer one.
    bool Received(const std::string& job_id, int64_t epoch) const;
    // Only in this epoch, and only with a rank: as a member, or as a helper.
    bool HadRank(const std::string& job_id, int64_t epoch) const;
    // A spare's assignment whose Launch came behind the end of this epoch's trainer here.
    std::optional<AssignmentKey> not_started;
    AssignmentKey key() const { return KeyOf(name, *attempt.launch); }
    // It has a trainer whose end is not reported.
    bool runs() const { return state != State::kIdle && !dying; }
  };

  void On(const CoordinatorOrder& order);
  void On(const StreamLostEvent& event);
  void On(const IncarnationOverEvent& event);
  void On(const RunEvent& event);
  void On(const DeviceCheckedEvent& event);
  void On(const TerminateEvent& event);
  void On(const TickEvent& event);

  // ---- agent_orders.cc
  void OnOrder(const WelcomeOrder& order);
  void OnOrder(const LaunchOrder& order);
  void OnOrder(const UniqueIdOrder& order);
  void OnOrder(const DirectiveOrder& order);
  void OnOrder(const AbortOrder& order);
  void OnOrder(const StopOrder& order);
  void OnOrder(const AckOrder& order);
  void OnOrder(const ForgetJobOrder& order);
  void OnOrder(const ProbeJobOrder& order);
  void Launch(const std::shared_ptr<const LaunchOrder>& order,
              const LaunchOrder::Assignment& assignment);
  void Refuse(const LaunchOrder& order, const LaunchOrder::Assignment& assignment,
              std::string reason);
  void Start(Worker& worker, Attempt attempt);
  void Take(Worker& worker, Attempt attempt);
  // Calls function(worker, attempt) for each attempt of this epoch: one that runs or waits.
  template <typename Function>
  void Forward(const std::string& job_id, int64_t epoch, Function function);
  bool IsToGoOn(const Worker& worker, const WelcomeOrder& order) const;

  // ---- agent_trainers.cc
  void OnTrainerMessage(Worker& worker, const TrainerToAgent& message);
  void OnHello(Worker& worker, const HelloMessage& hello);
  // From now on nothing is heard of it; a new process waits until it is gone.
  void OnDying(Worker& worker, const TrainerExited& exit);
  void OnExit(Worker& worker, const TrainerExited& exit);
  void ReportExit(const Worker& worker, TrainerExited exit);
  // The assignment that is for a new process, once the trainer has ended.
  std::optional<Attempt> TakeSuccessor(Worker& worker);
  void Report(const Worker& worker, decltype(NodeReport::report) report);
  // To the trainer of this attempt (the worker's own, or its next one).
  void Send(Worker& worker, Attempt& attempt, const AgentToTrainer& message);
  void Stop(Worker& worker, absl::Duration grace, absl::string_view reason);
  void SendAssign(Worker& worker);

  // ---- agent_probes.cc
  void LookAtProcess(Worker& worker);
  void OnProbeReply(Worker& worker, const ProbeReplyMessage& reply);
  void OnProcessSeen(Worker& worker, const RunEvent::ProcessSeen& seen);

  void StartAfresh(absl::string_view reason);
  void LeaveWhenDone();

  const Options options_;
  std::map<std::string, Worker> workers_;
  ReportBuffer reports_;
  SnapshotMemoryBook memories_;
  bool connected_ = false;
  bool exited_ = false;  // ExitAgentAction was given
  int terminations_ = 0;
  std::optional<absl::Duration> terminate_due_;  // then the trainers that still run are stopped
  std::optional<absl::Duration> farewell_due_;
  std::optional<absl::Duration> give_up_due_;  // then the agent leaves with trainers unreaped

  absl::Duration now_;                // of the event being handled
  std::vector<AgentAction> actions_;  // of the event being handled
};

}  // namespace muster
