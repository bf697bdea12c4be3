#include "worker/train/session.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <ATen/Parallel.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "common/spec/spec_json.h"
#include "worker/comm/self_communicator.h"
#include "worker/provider/builtin.h"
#include "worker/provider/plugin.h"
#include "worker/train/rehearsal.h"
#include "worker/train/training.h"

namespace muster {
namespace {

// A symptom of another rank's failure, most likely: the coordinator looks for the cause elsewhere
// first.
bool IsCollectiveCode(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
}

absl::StatusOr<CommunicatorPtr> FormWorld(const SessionOptions& options,
                                          const AssignMessage& assignment, const JobSpec& spec) {
  if (assignment.world_size + assignment.num_helpers == 1) return MakeSelfCommunicator("world", 0);
  const absl::Duration limit = absl::Minutes(spec.parallel.distributed_timeout_minutes);
  const absl::Duration watchdog = absl::Seconds(spec.recovery.watchdog_timeout_s);
  ControlClient& client = options.client;
  if (assignment.rank == 0) {
    ASSIGN_OR_RETURN(std::string id,
                     options.make_unique_id(spec.parallel.distributed_backend, assignment));
    client.Send(PublishUniqueIdMessage{.epoch = assignment.epoch, .id = std::move(id)});
  }
  ASSIGN_OR_RETURN(std::string unique_id, client.WaitForUniqueId(assignment.epoch, limit));
  return options.form_world(FormWorldOptions{.assignment = assignment,
                                             .backend = spec.parallel.distributed_backend,
                                             .unique_id = std::move(unique_id),
                                             .store = client.StoreOf(assignment.epoch),
                                             .limit = limit,
                                             .operation_limit = std::min(limit, watchdog),
                                             .shared_memory = spec.parallel.shared_memory});
}

absl::StatusOr<c10::Device> ParseDevice(const std::string& name) {
  try {
    return c10::Device(name);
  } catch (const c10::Error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("device=", name, ": ", error.what_without_backtrace()));
  }
}

// A process whose device has failed in the middle of something cannot use it any more.
constexpr int kDeviceFailed = 70;

bool IsDeviceError(const c10::Error& error) {
  if (dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr) return true;
  const std::string what = error.what_without_backtrace();
  return absl::StrContains(what, "CUDA error") || absl::StrContains(what, "CUBLAS_STATUS") ||
         absl::StrContains(what, "CUDNN_STATUS");
}

// torch's and autograd's exceptions end here.
template <typename Body>
auto CatchExceptions(ControlClient& client, int64_t epoch, const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const CollectiveError& error) {
    return error.status;
  } catch (const c10::Error& error) {
    if (!IsDeviceError(error)) return absl::InternalError(error.what_without_backtrace());
    MUSTER_LOG(kError) << "the device has failed, this process ends: "
                       << error.what_without_backtrace();
    client.Send(FailedMessage{.epoch = epoch, .reason = error.what_without_backtrace()});
    client.Flush(absl::Seconds(1));
    std::_Exit(kDeviceFailed);
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

// CPU ranks of a node share its hardware, but not a slot of it.
RerunPlace PlaceOf(const AssignMessage& assignment) {
  char node[256] = "";
  ::gethostname(node, sizeof(node) - 1);
  const char* const worker = std::getenv("MUSTER_WORKER");
  std::string device = assignment.device;
  if (device == "cpu" && worker != nullptr) absl::StrAppend(&device, ":", worker);
  return {.node = node, .device = std::move(device)};
}

struct PreparedProcess {
  JobSpec spec;
  c10::Device device;
};

// Makes the process ready for an assignment of any rank: its spec is read, its device, threads and
// the job's providers are there.
absl::StatusOr<PreparedProcess> PrepareProcess(const SessionOptions& options,
                                               const AssignMessage& assignment,
                                               ProviderRegistry& providers) {
  ParsedSpec parsed = ParseJobSpec(assignment.spec_json);
  if (!parsed.problems.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the assignment's spec: ", parsed.problems[0].ToString()));
  }
  JobSpec& spec = parsed.spec;
  ASSIGN_OR_RETURN(const c10::Device device, ParseDevice(assignment.device));
  RETURN_IF_ERROR(options.use_device(assignment.device));
  at::set_num_threads(static_cast<int>(spec.training.num_threads.value_or(assignment.num_threads)));
  RegisterBuiltinProviders(providers);
  if (spec.plugin.has_value()) {
    RETURN_IF_ERROR(LoadPlugin(*spec.plugin, assignment.plugin_dirs, providers));
  }
  return PreparedProcess{std::move(spec), device};
}

void BeginData(const JobSpec& spec, const ProviderRegistry& providers, bool build_cache,
               AttemptState& kept) {
  if (!kept.data.has_value() && kept.warm_data == nullptr)
    kept.warm_data = WarmData::Begin(spec, providers, build_cache);
}

// `world` stays with the caller: a rank that took its connections down now could fail the last
// operation of a slower peer.
absl::StatusOr<TrainingResult> RunAssignment(const SessionOptions& options,
                                             const AssignMessage& assignment,
                                             absl::Duration process_start, AttemptState& kept,
                                             CommunicatorPtr* kept_world) {
  ControlClient& client = options.client;
  auto phase = [&](const char* name) {
    client.Send(PhaseMessage{.epoch = assignment.epoch, .phase = name, .detail = ""});
  };
  ProviderRegistry providers;
  ASSIGN_OR_RETURN(const PreparedProcess prepared, PrepareProcess(options, assignment, providers));
  const JobSpec& spec = prepared.spec;
  const c10::Device device = prepared.device;
  // In a recovery the index is on disk already, or to be built by each rank for itself.
  if (assignment.epoch > 1) BeginData(spec, providers, assignment.rank == 0, kept);

  phase("forming");
  const absl::Duration start = options.clock.Steady();
  ASSIGN_OR_RETURN(CommunicatorPtr world, FormWorld(options, assignment, spec));
  // From here on an abort frees whatever waits, the forming itself included.
  client.OnAbort(assignment.epoch, [world](const std::string& reason) { world->Abort(reason); });
  RETURN_IF_ERROR(Annotate(world->Barrier()->Wait(), "forming the world's communicator"));
  *kept_world = world;
  if (kept.snapshotter == nullptr) {
    kept.snapshotter = std::make_unique<Snapshotter>(
        SnapshotterOptions{.job_id = assignment.job_id,
                           .memory = assignment.snapshot_memory,
                           .interval = spec.recovery.snapshot_interval});
  }
  const TrainingOptions training{.spec = spec,
                                 .world = world,
                                 .host = client,
                                 .providers = providers,
                                 .clock = options.clock,
                                 .epoch = assignment.epoch,
                                 .directives_through = assignment.directives_through,
                                 .device = device,
                                 .process_start = process_start,
                                 .job_id = assignment.job_id,
                                 .place = PlaceOf(assignment),
                                 .examine_json = assignment.examine_json,
                                 .kept = &kept,
                                 .buddy = assignment.buddy,
                                 .ledger_through = assignment.ledger_through,
                                 .form_time = options.clock.Steady() - start};
  absl::StatusOr<TrainingResult> result = RunTraining(training);
  client.OnAbort(assignment.epoch, nullptr);
  // Peers that wait for this rank are freed at once instead of at their time-out.
  if (!result.ok()) world->Abort(std::string(result.status().message()));
  return result;
}

void EndEpoch(CommunicatorPtr& world) {
  if (world != nullptr) world->Abort("its epoch is over");
  world.reset();
}

// A spare: everything that needs no rank, so that the next assignment finds a warm process. It may
// come at any time, and what is under way then goes on behind it (the data) or ends soon.
absl::StatusOr<TrainingResult> WarmUp(const SessionOptions& options,
                                      const AssignMessage& assignment, AttemptState& kept,
                                      bool is_warm) {
  ControlClient& client = options.client;
  client.Send(PhaseMessage{.epoch = assignment.epoch, .phase = "warming up", .detail = ""});
  ProviderRegistry providers;
  ASSIGN_OR_RETURN(const PreparedProcess prepared, PrepareProcess(options, assignment, providers));
  BeginData(prepared.spec, providers, /*build_cache=*/false, kept);
  if (is_warm) return TrainingResult{.reason = "warm from training"};
  const absl::Status rehearsed = Rehearse(prepared.spec, prepared.device, options.clock,
                                          [&client] { return client.IsWanted(); });
  return TrainingResult{
      .reason = absl::StrCat(
          "warm", rehearsed.ok() ? "" : ", but for its first step: ", rehearsed.message())};
}

}  // namespace

int RunSession(const SessionOptions& options) {
  ControlClient& client = options.client;
  client.WatchThisThread();
  client.Send(HelloMessage{.pid = ::getpid()});
  AttemptState kept;
  absl::Duration process_start;  // for its job
  CommunicatorPtr kept_world;    // of the last assignment, until the next or the end
  bool has_trained = false;      // this process, whatever job
  while (std::optional<AssignMessage> assignment = client.WaitForAssignment()) {
    SetLogName(assignment->rank < 0 ? "trainer spare"
                                    : absl::StrCat("trainer r", assignment->rank));
    const char* const worker = std::getenv("MUSTER_WORKER");
    SetLogContext({.job = assignment->job_id,
                   .epoch = assignment->epoch,
                   .rank = assignment->rank,
                   .worker = worker == nullptr ? "" : worker});
    // Nobody is in the last epoch any more, but a copy for a buddy may wait there.
    EndEpoch(kept_world);
    if (kept.job_id != assignment->job_id) {
      kept = AttemptState();
      kept.job_id = assignment->job_id;
      process_start = options.clock.Steady();
    }
    const auto run = [&]() -> absl::StatusOr<TrainingResult> {
      const bool is_warm = std::exchange(has_trained, true);
      if (assignment->rank < 0) return WarmUp(options, *assignment, kept, is_warm);
      return RunAssignment(options, *assignment, process_start, kept, &kept_world);
    };
    const absl::StatusOr<TrainingResult> result = CatchExceptions(client, assignment->epoch, run);
    client.OnAbort(assignment->epoch, nullptr);
    if (!result.ok()) {
      MUSTER_LOG(kError) << "attempt failed: " << result.status().ToString();
      client.Send(FailedMessage{.epoch = assignment->epoch,
                                .reason = std::string(result.status().message()),
                                .collective = IsCollectiveCode(result.status())});
      continue;
    }
    MUSTER_LOG(kInfo) << "done: " << result->reason;
    if (assignment->rank < 0) {
      client.Send(PhaseMessage{.epoch = assignment->epoch, .phase = "spare", .detail = ""});
    } else if (result->yielded) {
      if (result->told) continue;
      client.Send(PhaseMessage{.epoch = assignment->epoch, .phase = "yielded", .detail = ""});
    } else {
      client.Send(DoneMessage{
          .epoch = assignment->epoch, .exit_code = result->exit_code, .reason = result->reason});
    }
  }
  EndEpoch(kept_world);
  client.Flush(absl::Seconds(1));
  return 0;
}

}  // namespace muster
