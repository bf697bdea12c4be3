#include "worker/agent/trainer_launch.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/control/messages.h"

namespace muster {
namespace {

std::string LogName(const StartTrainerAction& action) {
  if (action.assignment.rank < 0)
    return absl::StrCat("spare-", absl::StrReplaceAll(action.worker, {{"/", "_"}}), ".log");
  return absl::StrFormat("rank-%05d.log", action.assignment.rank);
}

}  // namespace

absl::StatusOr<TrainerLaunch> PrepareLaunch(const StartTrainerAction& action, const JobSpec& spec,
                                            const TrainerLaunchOptions& options) {
  const std::string folder = absl::StrCat(options.log_folder, "/",
                                          absl::StrReplaceAll(action.launch->job_id, {{"/", "_"}}));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TrainerLaunch launch;
  if (error)
    launch.log_problem =
        absl::StrCat("the log folder ", folder, " can't be made: ", error.message());
  const bool disk_is_full = error == std::errc::no_space_on_device || error.value() == EDQUOT;
  if (error && !disk_is_full) return absl::UnavailableError(launch.log_problem);
  launch.process = {.program = options.program,
                    .env = {{"OMP_NUM_THREADS", absl::StrCat(action.assignment.num_threads)},
                            {"MUSTER_WORKER", action.worker}},  // for the trainer's log lines
                    .log_path = disk_is_full ? "" : absl::StrCat(folder, "/", LogName(action)),
                    .max_control_line = kMaxControlLine};
  for (const auto& [name, value] : spec.resources.env) launch.process.env[name] = value;
  const auto found = options.cores.find(action.worker);
  // A job that asks for more threads than its worker has cores keeps all of the node's: it knows
  // that the others are idle.
  const bool is_bound =
      found != options.cores.end() &&
      action.assignment.num_threads <= static_cast<int>(found->second.cpus.size());
  if (is_bound) {
    launch.process.cpus = found->second.cpus;
    launch.process.memory_node = found->second.numa_node;
  }
  return launch;
}

}  // namespace muster
