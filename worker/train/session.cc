#include "worker/train/session.h"

#include <unistd.h>

#include <cstdlib>

#include <ATen/Parallel.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/runtime/log.h"
#include "common/spec/spec_json.h"
#include "worker/comm/self_communicator.h"
#include "worker/provider/builtin.h"
#include "worker/provider/plugin.h"
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
  if (assignment.world_size == 1) return MakeSelfCommunicator("world", 0);
  const absl::Duration limit = absl::Minutes(spec.parallel.distributed_timeout_minutes);
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
                                             .operation_limit = limit,
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

// torch's and autograd's exceptions end here.
template <typename Body>
absl::StatusOr<TrainingResult> CatchExceptions(const Body& body) {
  try {
    return body();
  } catch (const CollectiveError& error) {
    return error.status;
  } catch (const c10::Error& error) {
    return absl::InternalError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

// `world` stays with the caller: a rank that took its connections down now could fail the last
// operation of a slower peer.
absl::StatusOr<TrainingResult> RunAssignment(const SessionOptions& options,
                                             const AssignMessage& assignment,
                                             CommunicatorPtr* kept_world) {
  ControlClient& client = options.client;
  auto phase = [&](const char* name) {
    client.Send(PhaseMessage{.epoch = assignment.epoch, .phase = name, .detail = ""});
  };
  ParsedSpec parsed = ParseJobSpec(assignment.spec_json);
  if (!parsed.problems.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the assignment's spec: ", parsed.problems[0].ToString()));
  }
  const JobSpec& spec = parsed.spec;
  ASSIGN_OR_RETURN(const c10::Device device, ParseDevice(assignment.device));
  RETURN_IF_ERROR(options.use_device(assignment.device));
  at::set_num_threads(static_cast<int>(spec.training.num_threads.value_or(assignment.num_threads)));

  ProviderRegistry providers;
  RegisterBuiltinProviders(providers);
  if (spec.plugin.has_value()) {
    RETURN_IF_ERROR(LoadPlugin(*spec.plugin, assignment.plugin_dirs, providers));
  }

  phase("forming");
  ASSIGN_OR_RETURN(CommunicatorPtr world, FormWorld(options, assignment, spec));
  // From here on an abort frees whatever waits, the forming itself included.
  client.OnAbort(assignment.epoch, [world](const std::string& reason) { world->Abort(reason); });
  RETURN_IF_ERROR(Annotate(world->Barrier()->Wait(), "forming the world's communicator"));
  *kept_world = world;
  const TrainingOptions training{.spec = spec,
                                 .world = world,
                                 .host = client,
                                 .providers = providers,
                                 .clock = options.clock,
                                 .epoch = assignment.epoch,
                                 .directives_through = assignment.directives_through,
                                 .device = device,
                                 .process_start = options.clock.Steady()};
  absl::StatusOr<TrainingResult> result = RunTraining(training);
  client.OnAbort(assignment.epoch, nullptr);
  // Peers that wait for this rank are freed at once instead of at their time-out.
  if (!result.ok()) world->Abort(std::string(result.status().message()));
  return result;
}

}  // namespace

int RunSession(const SessionOptions& options) {
  ControlClient& client = options.client;
  client.Send(HelloMessage{.pid = ::getpid()});
  CommunicatorPtr kept_world;  // of the last assignment, until the next or the end
  while (std::optional<AssignMessage> assignment = client.WaitForAssignment()) {
    SetLogName(absl::StrCat("trainer r", assignment->rank));
    const char* const worker = std::getenv("MUSTER_WORKER");
    SetLogContext({.job = assignment->job_id,
                   .epoch = assignment->epoch,
                   .rank = assignment->rank,
                   .worker = worker == nullptr ? "" : worker});
    kept_world.reset();
    const absl::StatusOr<TrainingResult> result =
        CatchExceptions([&] { return RunAssignment(options, *assignment, &kept_world); });
    if (result.ok()) {
      MUSTER_LOG(kInfo) << "done: " << result->reason;
      client.Send(DoneMessage{
          .epoch = assignment->epoch, .exit_code = result->exit_code, .reason = result->reason});
      continue;
    }
    MUSTER_LOG(kError) << "attempt failed: " << result.status().ToString();
    client.Send(FailedMessage{.epoch = assignment->epoch,
                              .reason = std::string(result.status().message()),
                              .collective = IsCollectiveCode(result.status())});
  }
  client.Flush(absl::Seconds(1));
  return 0;
}

}  // namespace muster
