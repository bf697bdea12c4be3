#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/absolute_paths.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/describe_end.h"
#include "cli/follow.h"
#include "cli/interrupt.h"
#include "cli/local_cluster.h"
#include "cli/output.h"
#include "cli/spec_file.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

// Trainers get this long to leave once their job has ended.
constexpr absl::Duration kReleaseLimit = absl::Seconds(5);
constexpr absl::Duration kStopGrace = absl::Seconds(10);

struct LocalRun {
  LoadedSpec loaded;
  LocalCluster::Options cluster;
  bool own_state_dir = false;  // a temporary one: removed after a success
  std::string metrics_path;
};

absl::StatusOr<LocalRun> Prepare(const Invocation& invocation) {
  LocalRun run;
  ASSIGN_OR_RETURN(run.loaded, LoadSpec(invocation.arguments[0], invocation.GetAll("--set")));
  CheckForRun(&run.loaded);
  if (!run.loaded.problems.empty()) return run;
  RETURN_IF_ERROR(MakePathsAbsolute(&run.loaded));
  const ResourcesSpec& resources = run.loaded.spec.resources;
  ASSIGN_OR_RETURN(const int64_t workers, invocation.GetInt("--workers", resources.world_size, 1));
  ASSIGN_OR_RETURN(const int64_t spares, invocation.GetInt("--spares", resources.spares, 0));
  ASSIGN_OR_RETURN(const int64_t port, invocation.GetInt("--port", 0, 0));
  if (port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--port=", port, ": must be at most 65535"));
  }
  if (workers < resources.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workers=", workers,
                     ": the job needs resources.world_size=", resources.world_size, " workers"));
  }
  run.cluster.port = static_cast<int>(port);
  run.cluster.num_workers = static_cast<int>(workers + spares);
  if (resources.device == "cuda") {
    run.cluster.device = "cuda:all";
    run.cluster.num_workers = 1;  // slots; the devices are the workers
  }
  run.cluster.trainer = invocation.Get("--trainer");
  run.metrics_path = invocation.Get("--metrics");
  run.cluster.state_dir = invocation.Get("--state-dir");
  return run;
}

absl::Status MakeStateDir(LocalRun* run) {
  if (!run->cluster.state_dir.empty()) return absl::OkStatus();
  std::string pattern = (std::filesystem::temp_directory_path() / "muster-local-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot make a folder ", pattern, ": ", strerror(errno)));
  }
  run->cluster.state_dir = pattern;
  run->own_state_dir = true;
  return absl::OkStatus();
}

// The first ctrl-C asks for an orderly end, the second ends at once.
class Interrupter {
 public:
  Interrupter(Client* client, std::string job_id, bool can_save)
      : client_(*client), job_id_(std::move(job_id)), can_save_(can_save) {}

  absl::Status Poll() {
    const int count = NumInterrupts();
    if (count >= 2) return absl::CancelledError("interrupted twice");
    if (count == 0 || asked_) return absl::OkStatus();
    std::cout << absl::StrCat("\n", can_save_ ? "writing a checkpoint and stopping" : "stopping",
                              " at the next step; ctrl-C again stops at once\n")
              << std::flush;
    asked_ = true;
    return client_
        .CancelJob(job_id_, can_save_ ? v1::CANCEL_MODE_CHECKPOINT_AND_STOP : v1::CANCEL_MODE_STOP,
                   "interrupted")
        .status();
  }

 private:
  Client& client_;
  const std::string job_id_;
  const bool can_save_;
  bool asked_ = false;
};

void WaitForRelease(Client* client, const std::string& job_id) {
  const absl::Time limit = absl::Now() + kReleaseLimit;
  while (absl::Now() < limit && NumInterrupts() < 2) {
    const absl::StatusOr<v1::JobStatus> job = client->GetJob(job_id);
    if (!job.ok() || job->workers_released()) return;
    absl::SleepFor(absl::Milliseconds(20));
  }
}

// The job's exit code.
absl::StatusOr<int> RunJob(const LocalRun& run, LocalCluster* cluster) {
  Client client(cluster->address());
  ASSIGN_OR_RETURN(const v1::SubmitJobResponse submitted, client.SubmitJob(run.loaded.json));
  if (submitted.problems_size() > 0) {
    std::vector<SpecProblem> problems;
    for (const v1::SpecProblem& problem : submitted.problems()) {
      problems.push_back({problem.field(), problem.value(), problem.message()});
    }
    PrintProblems("the spec", problems);
    return kExitUsage;
  }
  RETURN_IF_ERROR(cluster->WriteDescription(submitted.job_id()));
  std::ofstream metrics;
  if (!run.metrics_path.empty()) {
    metrics.open(run.metrics_path, std::ios::app);
    if (!metrics) {
      return absl::InvalidArgumentError(
          absl::StrCat("--metrics=", run.metrics_path, " can't be written: ", strerror(errno)));
    }
  }
  Interrupter interrupter(&client, submitted.job_id(), run.loaded.spec.checkpoint.save.has_value());
  FollowOptions options{.on_record =
                            [&](const v1::MetricsRecord& record) {
                              if (metrics.is_open())
                                metrics << ToJson(record).dump() << "\n" << std::flush;
                            },
                        .poll = [&]() -> absl::Status {
                          RETURN_IF_ERROR(cluster->Check());
                          return interrupter.Poll();
                        }};
  ASSIGN_OR_RETURN(const v1::JobStatus job, FollowJob(&client, submitted.job_id(), options));
  WaitForRelease(&client, submitted.job_id());
  // The coordinator goes with this command: what `status` would say stays.
  RETURN_IF_ERROR(cluster->WriteStateFile("status.json", ToJson(job).dump(2)));
  if (job.exit_code() != kExitDone && NumInterrupts() == 0) {
    PrintError(absl::StrCat(DescribeFirstCause(job), "; the trainers' output is in ",
                            run.cluster.state_dir, "/worker/logs/", job.job_id()));
  }
  return job.exit_code();
}

int Local(const Invocation& invocation) {
  absl::StatusOr<LocalRun> run = Prepare(invocation);
  if (!run.ok()) {
    PrintError(run.status().message());
    return kExitUsage;
  }
  if (!run->loaded.problems.empty()) {
    PrintProblems(invocation.arguments[0], run->loaded.problems);
    return kExitUsage;
  }
  CountInterrupts();
  absl::Status status = MakeStateDir(&*run);
  absl::StatusOr<int> code = kExitJobFailed;
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<LocalCluster>> cluster = LocalCluster::Start(run->cluster);
    status = cluster.status();
    if (cluster.ok()) {
      std::cout << absl::StrCat("cluster on ", (*cluster)->address(), ", page at http://",
                                (*cluster)->http_address(), "/status, state in ",
                                run->cluster.state_dir, "\n")
                << std::flush;
      code = RunJob(*run, cluster->get());
      if (!code.ok()) status = code.status();
      (*cluster)->Stop(code.ok() ? kStopGrace : absl::ZeroDuration());
    }
  }
  if (!status.ok()) {
    if (NumInterrupts() > 0) return kExitInterrupted;
    PrintError(status.message());
    return status.code() == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitJobFailed;
  }
  if (run->own_state_dir && *code == kExitDone) {
    std::error_code ignored;
    std::filesystem::remove_all(run->cluster.state_dir, ignored);
  }
  return *code;
}

}  // namespace

Command LocalCommand() {
  return {.name = "local",
          .arguments = "SPEC",
          .help = "run a job with a whole cluster on this machine",
          .details =
              "Starts a coordinator and workers as processes of this machine, submits the job, "
              "follows it to its end, stops them, and exits with the job's code. Other commands "
              "can look at the running job: the coordinator's address is in DIR/cluster.json, and "
              "printed. The first ctrl-C asks for an orderly end (with a checkpoint, where the "
              "spec has checkpoint.save), the second stops at once.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {{.name = "--workers",
                       .value = "N",
                       .help = "workers (default: the job's world size)"},
                      {.name = "--spares", .value = "K", .help = "workers beyond those"},
                      {.name = "--state-dir",
                       .value = "DIR",
                       .help = "logs, the coordinator's state, cluster.json and, at the "
                               "end, status.json (default: a temporary folder, removed after a "
                               "success)"},
                      {.name = "--metrics",
                       .value = "FILE",
                       .help = "append each iteration's record as a JSON line"},
                      {.name = "--port",
                       .value = "P",
                       .help = "of the coordinator (default: any that is free)"},
                      {.name = "--trainer",
                       .value = "PATH",
                       .help = "muster-trainer (default: beside this program)"},
                      SetOption()},
          .examples = {{"muster local examples/demo.json", "a job on this machine"},
                       {"muster local spec.json --state-dir run --metrics run/metrics.jsonl",
                        "keep logs, state and every record"}},
          .files = {{"DIR/cluster.json", "address, process ids and job of the running cluster"},
                    {"DIR/status.json", "what muster status --json said at the end"},
                    {"DIR/worker/logs/JOB/rank-NNNNN.log", "the whole output of a trainer"}},
          .exits_as_job = true,
          .run = Local};
}

}  // namespace muster
