#include "worker/agent/agent.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "common/runtime/mutex.h"
#include "common/spec/spec_json.h"
#include "worker/agent/convert.h"
#include "worker/agent/coordinator_client.h"
#include "worker/agent/device_checker.h"
#include "worker/agent/file_spill.h"
#include "worker/agent/node_description.h"
#include "worker/agent/oom_kills.h"
#include "worker/agent/process_look.h"
#include "worker/agent/snapshot_memories.h"
#include "worker/agent/store_proxy.h"
#include "worker/agent/trainer_set.h"
#include "worker/core/agent_machine.h"

namespace muster {
namespace {

// Log lines beyond this many events wait in their trainer's pipe.
constexpr size_t kMaxQueuedRunEvents = 4096;
// For the coordinator to hear the goodbye; without it the heartbeat's limit says the same later.
constexpr absl::Duration kGoodbyeLimit = absl::Seconds(1);

AgentMachine::Options MachineOptions(const Agent::Options& options, ReportSpill* spill) {
  return {.workers = WorkerNames(options),
          .plugin_dirs = options.plugin_dirs,
          .default_num_threads =
              std::max(1, options.num_cpus / static_cast<int>(options.devices.size())),
          .reports = {.spill = spill}};
}

}  // namespace

class Agent::Impl {
 public:
  explicit Impl(Options options)
      : options_(std::move(options)),
        cores_(CoresByWorker(options_)),
        spill_({.folder = absl::StrCat(options_.state_dir, "/reports")}),
        machine_(MachineOptions(options_, &spill_)),
        checker_({.program = options_.trainer_program,
                  .limit = options_.device_check_limit,
                  .delay = options_.recheck_delay}) {}

  absl::Status Run() {
    const std::shared_ptr<grpc::Channel> channel = NewChannel(options_.coordinator, options_.token);
    StoreProxy store(channel);  // outlives what asks it
    TrainerSet trainers({.program = options_.trainer_program,
                         .log_folder = absl::StrCat(options_.state_dir, "/logs"),
                         .node = options_.name,
                         .ask =
                             [&store](const std::string& job_id, const StoreRequestMessage& request,
                                      std::function<void(StoreReplyMessage)> reply) {
                               store.Ask(job_id, request, std::move(reply));
                             },
                         .cores = cores_,
                         .oom_file = OomFileHere()},
                        [this](RunEvent event) { Post(std::move(event), 0); });
    CoordinatorClient client(
        channel, options_.coordinator,
        Registration(options_, checker_.CheckNow(DeviceNames(options_))),
        {.on_order = [this](int64_t stream,
                            CoordinatorOrder order) { Post(std::move(order), stream); },
         .on_stream_lost = [this](int64_t stream) { Post(StreamLostEvent{}, stream); },
         .on_incarnation_over = [this] { Post(IncarnationOverEvent{}, 0); },
         .on_refused = [this](absl::Status status) { Refuse(std::move(status)); }});
    trainers_ = &trainers;
    store_ = &store;
    client_ = &client;
    absl::Status result = Loop();
    {
      // What still posts (a trainer that is killed below) must not wait for this loop.
      MutexLock lock(&mu_);
      closed_ = true;
      changed_.NotifyAll();
    }
    return result;
  }

  void Terminate() { Post(TerminateEvent{}, 0); }

 private:
  struct Posted {
    AgentEvent event;
    int64_t stream = 0;  // that brought it
  };

  void Post(AgentEvent event, int64_t stream) {
    const bool may_wait = std::holds_alternative<RunEvent>(event);
    MutexLock lock(&mu_);
    while (may_wait && !closed_ && events_.size() >= kMaxQueuedRunEvents) changed_.Wait(&mu_);
    events_.push_back({std::move(event), stream});
    changed_.NotifyAll();
  }

  void Refuse(absl::Status status) {
    if (absl::IsUnauthenticated(status)) {
      status =
          absl::UnauthenticatedError(DescribeRefusal(options_.coordinator, options_.token_file));
    }
    MutexLock lock(&mu_);
    refusal_ = std::move(status);
    changed_.NotifyAll();
  }

  absl::Status Loop() {
    while (true) {
      Posted next{TickEvent{}, 0};
      {
        const std::optional<absl::Duration> wake = machine_.NextWake();
        MutexLock lock(&mu_);
        while (events_.empty() && refusal_.ok() && (!wake || clock_.Steady() < *wake)) {
          if (wake) {
            changed_.WaitFor(&mu_, *wake - clock_.Steady());
          } else {
            changed_.Wait(&mu_);
          }
        }
        if (!refusal_.ok()) return refusal_;
        if (!events_.empty()) {
          next = std::move(events_.front());
          events_.pop_front();
          if (events_.size() + 1 == kMaxQueuedRunEvents) changed_.NotifyAll();
        }
      }
      if (!Handle(next)) return absl::OkStatus();
    }
  }

  // False when the agent is to leave.
  bool Handle(Posted& posted) {
    if (auto* order = std::get_if<CoordinatorOrder>(&posted.event)) {
      stream_ = posted.stream;
      if (auto* launch = std::get_if<LaunchOrder>(order)) FillThreads(launch);
    }
    for (const AgentAction& action : machine_.Handle(posted.event, clock_.Steady())) {
      if (const auto* exit = std::get_if<ExitAgentAction>(&action)) {
        if (exit->goodbye) client_->Leave("it was told to end", kGoodbyeLimit);
        return false;
      }
      std::visit([this](const auto& a) { Do(a); }, action);
    }
    const auto* run = std::get_if<RunEvent>(&posted.event);
    if (run != nullptr) NoteProgress();
    if (run != nullptr && std::holds_alternative<TrainerExited>(run->what)) {
      trainers_->Forget(run->worker, run->run);
    }
    return true;
  }

  void NoteProgress() {
    std::vector<JobProgress> progress = machine_.Progress();
    if (progress == progress_) return;
    client_->SetProgress(progress);
    progress_ = std::move(progress);
  }

  // The spec's own wish goes first, then the cores that the worker is bound to, then the
  // coordinator's share of the node.
  void FillThreads(LaunchOrder* launch) const {
    const ParsedSpec parsed = ParseJobSpec(launch->spec_json);
    for (LaunchOrder::Assignment& assignment : launch->assignments) {
      const auto cores = cores_.find(assignment.worker);
      if (parsed.spec.training.num_threads) {
        assignment.num_threads = static_cast<int>(*parsed.spec.training.num_threads);
      } else if (cores != cores_.end()) {
        assignment.num_threads = static_cast<int>(cores->second.cpus.size());
      }
    }
  }

  void Do(const StartTrainerAction& action) { trainers_->Start(action); }
  void Do(const SendToTrainerAction& action) {
    if (action.snapshot_memory == 0) {
      trainers_->Send(action.worker, action.run, action.message);
      return;
    }
    AgentToTrainer message = action.message;
    absl::StatusOr<std::string> path = memories_.PathOf(action.snapshot_memory);
    if (path.ok()) {
      std::get<AssignMessage>(message).snapshot_memory = *std::move(path);
    } else {
      MUSTER_LOG(kWarning) << "the trainer of " << action.worker
                           << " keeps no snapshots: " << path.status().message();
    }
    trainers_->Send(action.worker, action.run, message);
  }
  void Do(const SignalTrainerAction& action) {
    trainers_->Signal(action.worker, action.run, SIGTERM);
  }
  void Do(const EndTrainerAction& action) {
    trainers_->End(action.worker, action.run, action.grace, action.reason);
  }
  void Do(const StoreRequestAction& action) {
    store_->Ask(action.job_id, action.request, ReplyTo(action.worker, action.run));
  }
  void Do(const TracePieceAction& action) {
    store_->Ask(action.job_id, action.rank, action.piece, ReplyTo(action.worker, action.run));
  }
  std::function<void(StoreReplyMessage)> ReplyTo(const std::string& worker, int64_t run) {
    return [this, worker, run](StoreReplyMessage reply) {
      PostNow(RunEvent{worker, run, std::move(reply)});
    };
  }
  // Never waits: for gRPC's threads, and for the loop itself.
  void PostNow(AgentEvent event) {
    MutexLock lock(&mu_);
    events_.push_back({std::move(event), 0});
    changed_.NotifyAll();
  }
  void Do(const LookAtProcessAction& action) {
    ProcessLook look = LookAtProcess(trainers_->PidOf(action.worker, action.run));
    PostNow(RunEvent{action.worker, action.run,
                     RunEvent::ProcessSeen{.request = action.request,
                                           .running = look.running,
                                           .state = std::move(look.state),
                                           .cpu_ms = look.cpu_ms}});
  }
  void Do(const FreeSnapshotMemoryAction& action) { memories_.Free(action.id); }
  void Do(const CheckDeviceAction& action) {
    const std::vector<std::string> names = WorkerNames(options_);
    const auto found = std::find(names.begin(), names.end(), action.assignment.worker);
    checker_.CheckLater(
        options_.devices[found - names.begin()].device, [this, action](DeviceCheck check) {
          PostNow(DeviceCheckedEvent{action.assignment, action.rank, std::move(check)});
        });
  }
  void Do(const SendBatchAction& action) { client_->Send(stream_, action.batch); }
  void Do(const NewIncarnationAction& action) {
    MUSTER_LOG(kWarning) << "ending the trainers of this node and registering anew: "
                         << action.reason;
    client_->NewIncarnation();
  }
  void Do(const ExitAgentAction&) {}

  const Options options_;
  const std::map<std::string, WorkerCores> cores_;  // of the workers that are bound
  RealClock clock_;
  FileSpill spill_;
  AgentMachine machine_;
  SnapshotMemories memories_;
  int64_t stream_ = 0;                 // of the last order
  std::vector<JobProgress> progress_;  // as the client knows it
  TrainerSet* trainers_ = nullptr;
  StoreProxy* store_ = nullptr;
  CoordinatorClient* client_ = nullptr;

  Mutex mu_;
  CondVar changed_;
  std::deque<Posted> events_ ABSL_GUARDED_BY(mu_);
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  DeviceChecker checker_;  // last: its callbacks use the others
};

Agent::Agent(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Agent::~Agent() = default;
absl::Status Agent::Run() { return impl_->Run(); }
void Agent::Terminate() { impl_->Terminate(); }

}  // namespace muster
