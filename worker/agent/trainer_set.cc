#include "worker/agent/trainer_set.h"

#include <signal.h>

#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/control/messages.h"
#include "common/preflight/spec_files.h"
#include "common/runtime/log.h"
#include "common/runtime/mutex.h"
#include "common/spec/spec_json.h"
#include "worker/agent/folder_gate.h"
#include "worker/agent/oom_kills.h"
#include "worker/agent/trainer_launch.h"
#include "worker/agent/trainer_process.h"

namespace muster {
namespace {

// The spec was validated whole when it was submitted; what can fail here is this machine.
absl::StatusOr<JobSpec> CheckSpec(const std::string& spec_json, const std::string& node) {
  ParsedSpec parsed = ParseJobSpec(spec_json);
  std::vector<SpecProblem> problems = std::move(parsed.problems);
  if (problems.empty()) problems = CheckSpecFiles(parsed.spec);
  if (problems.empty()) return std::move(parsed.spec);
  return absl::FailedPreconditionError(
      absl::StrCat("node ", node, ": ",
                   absl::StrJoin(problems, "; ", [](std::string* out, const SpecProblem& problem) {
                     absl::StrAppend(out, problem.ToString());
                   })));
}

}  // namespace

class TrainerSet::Impl {
 public:
  Impl(Options options, std::function<void(RunEvent)> post)
      : options_(std::move(options)),
        post_(std::move(post)),
        oom_kills_(options_.oom_file),
        gate_(options_.node, options_.ask,
              [this](std::vector<StartTrainerAction> starts) { Again(std::move(starts)); }),
        launcher_([this] { Launch(); }) {}

  ~Impl() {
    {
      MutexLock lock(&mu_);
      ending_ = true;
      changed_.NotifyAll();
    }
    launcher_.join();
    std::map<std::string, Entry> entries;
    {
      MutexLock lock(&mu_);
      entries.swap(entries_);
    }
    // Each destructor kills, reaps and waits for the callbacks; not under the lock.
  }

  void Start(const StartTrainerAction& action) {
    MutexLock lock(&mu_);
    entries_[action.worker] = Entry{.run = action.run};
    starts_.push_back(action);
    changed_.NotifyAll();
  }

  void Send(const std::string& worker, int64_t run, const AgentToTrainer& message) {
    MutexLock lock(&mu_);
    Entry* entry = Find(worker, run);
    if (entry == nullptr || entry->process == nullptr) return;
    const absl::Status status = entry->process->Send(Encode(message));
    if (status.code() == absl::StatusCode::kResourceExhausted) {
      entry->process->KillAfter(absl::ZeroDuration(), status.message());
    }
  }

  void Signal(const std::string& worker, int64_t run, int signal) {
    MutexLock lock(&mu_);
    Entry* entry = Find(worker, run);
    if (entry != nullptr && entry->process != nullptr) entry->process->Signal(signal);
  }

  void End(const std::string& worker, int64_t run, absl::Duration grace, absl::string_view reason) {
    MutexLock lock(&mu_);
    Entry* entry = Find(worker, run);
    if (entry == nullptr) return;
    entry->end_reason = std::string(reason);
    if (entry->process != nullptr) {
      EndProcess(*entry, grace);
      return;
    }
    if (std::optional<StartTrainerAction> held = gate_.TakeHeld(worker, run))
      starts_.push_back(*std::move(held));
    changed_.NotifyAll();
  }

  int64_t PidOf(const std::string& worker, int64_t run) {
    MutexLock lock(&mu_);
    const Entry* entry = Find(worker, run);
    return entry == nullptr || entry->process == nullptr ? 0 : entry->process->pid();
  }

  void Forget(const std::string& worker, int64_t run) {
    std::unique_ptr<TrainerProcess> process;
    MutexLock lock(&mu_);
    Entry* entry = Find(worker, run);
    if (entry == nullptr) return;
    // The exit callback has run or is about to return: the join in the destructor is short, and
    // its callbacks take no lock of ours.
    process = std::move(entry->process);
    entries_.erase(worker);
  }

 private:
  struct Entry {
    int64_t run = 0;
    std::unique_ptr<TrainerProcess> process;  // null until it was started
    std::string end_reason;                   // not empty: it is to end
  };

  Entry* Find(const std::string& worker, int64_t run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = entries_.find(worker);
    return found == entries_.end() || found->second.run != run ? nullptr : &found->second;
  }

  static void EndProcess(Entry& entry, absl::Duration grace) {
    entry.process->CloseControl();
    entry.process->KillAfter(grace, entry.end_reason);
  }

  void Launch() {
    while (true) {
      StartTrainerAction action;
      std::vector<std::unique_ptr<SharedFolderCheck>> over;
      {
        MutexLock lock(&mu_);
        while (!ending_ && starts_.empty() && over_.empty()) changed_.Wait(&mu_);
        if (ending_) return;
        over.swap(over_);
        if (!starts_.empty()) {
          action = std::move(starts_.front());
          starts_.pop_front();
        }
      }
      over.clear();  // removes the marks of those that wrote one; not under the lock
      if (action.launch == nullptr) continue;
      absl::StatusOr<JobSpec> spec = Prepare(action);
      if (spec.ok()) {
        const std::optional<absl::Status> folder = AskGate(action, *spec);
        if (!folder) continue;  // held until it is known
        if (!folder->ok()) spec = *folder;
      }
      const absl::StatusOr<int64_t> pid =
          spec.ok() ? Launch(action, *spec) : absl::StatusOr<int64_t>(spec.status());
      RunEvent event{action.worker, action.run, RunEvent::Started{pid.value_or(0)}};
      if (!pid.ok()) {
        MUSTER_LOG(kError) << "cannot start a trainer: " << pid.status().message()
                           << " worker=" << action.worker << " job=" << action.launch->job_id
                           << " epoch=" << action.launch->epoch
                           << " rank=" << action.assignment.rank;
        EndFolderCheck(action.launch->job_id, /*now=*/true);
        event.what = TrainerExited{.launch_error = std::string(pid.status().message())};
      }
      post_(std::move(event));
    }
  }

  absl::Status CheckWanted(const StartTrainerAction& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Entry* entry = Find(action.worker, action.run);
    if (entry != nullptr && entry->end_reason.empty() && !ending_) return absl::OkStatus();
    return absl::CancelledError("it was stopped before its start");
  }

  absl::StatusOr<JobSpec> Prepare(const StartTrainerAction& action) {
    {
      MutexLock lock(&mu_);
      RETURN_IF_ERROR(CheckWanted(action));
    }
    return CheckSpec(action.launch->spec_json, options_.node);
  }

  // nullopt: not known yet; the action comes back once it is.
  std::optional<absl::Status> AskGate(const StartTrainerAction& action, const JobSpec& spec) {
    MutexLock lock(&mu_);  // an End that comes now finds it held back
    if (absl::Status wanted = CheckWanted(action); !wanted.ok()) return wanted;
    return gate_.Ask(action, spec);
  }

  void Again(std::vector<StartTrainerAction> starts) {
    MutexLock lock(&mu_);
    for (StartTrainerAction& start : starts) starts_.push_back(std::move(start));
    changed_.NotifyAll();
  }

  void EndFolderCheck(const std::string& job_id, bool now) {
    std::unique_ptr<SharedFolderCheck> check = gate_.EndCheck(job_id, now);
    if (check == nullptr) return;
    MutexLock lock(&mu_);
    over_.push_back(std::move(check));
    changed_.NotifyAll();
  }

  absl::StatusOr<int64_t> Launch(const StartTrainerAction& action, const JobSpec& spec) {
    ASSIGN_OR_RETURN(TrainerLaunch launch, PrepareLaunch(action, spec,
                                                         {.program = options_.program,
                                                          .log_folder = options_.log_folder,
                                                          .cores = options_.cores}));
    if (!launch.log_problem.empty())
      post_({action.worker, action.run, RunEvent::Note{"log_failed", launch.log_problem}});
    TrainerProcess::Options& options = launch.process;
    const std::string bound_to = CpuList(options.cpus);
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(CheckWanted(action));
    Entry* entry = Find(action.worker, action.run);
    // Under the lock, so that its exit can't be handled before it has its place.
    ASSIGN_OR_RETURN(entry->process,
                     TrainerProcess::Start(std::move(options), CallbacksFor(action)));
    MUSTER_LOG(kInfo) << "started a trainer worker=" << action.worker
                      << " job=" << action.launch->job_id << " epoch=" << action.launch->epoch
                      << " rank=" << action.assignment.rank << " pid=" << entry->process->pid()
                      << " threads=" << action.assignment.num_threads
                      << " cores=" << (bound_to.empty() ? std::string("any") : bound_to);
    return entry->process->pid();
  }

  TrainerProcess::Callbacks CallbacksFor(const StartTrainerAction& action) {
    const std::string worker = action.worker;
    const int64_t run = action.run;
    const std::string job_id = action.launch->job_id;
    const auto told = std::make_shared<bool>(false);  // its end; on the process's thread only
    return {
        .on_message =
            [this, worker, run, job_id](std::string line) {
              absl::StatusOr<TrainerToAgent> message = DecodeTrainerToAgent(line);
              if (message.ok()) {
                const auto* phase = std::get_if<PhaseMessage>(&*message);
                if (std::holds_alternative<ProgressMessage>(*message) ||
                    (phase != nullptr && phase->phase == "training")) {
                  EndFolderCheck(job_id, /*now=*/false);
                }
                post_({worker, run, *std::move(message)});
              } else {
                post_({worker, run, RunEvent::Garbage{std::string(message.status().message())}});
              }
            },
        .on_log_line =
            [this, worker, run](std::string line) {
              post_({worker, run, RunEvent::LogLine{std::move(line)}});
            },
        .on_log_problem =
            [this, worker, run](std::string text) {
              MUSTER_LOG(kWarning) << text << " worker=" << worker;
              post_({worker, run, RunEvent::Note{"log_failed", std::move(text)}});
            },
        .on_dying =
            [this, worker, run, job_id, told](TrainerExit exit) {
              *told = true;
              MUSTER_LOG(kInfo) << "trainer is dying: " << exit.Describe() << " worker=" << worker
                                << " job=" << job_id;
              post_({worker, run, RunEvent::Dying{ExitedWith(std::move(exit))}});
            },
        .on_exit =
            [this, worker, run, job_id, told, epoch = action.launch->epoch,
             rank = action.assignment.rank](TrainerExit exit) {
              MUSTER_LOG(kInfo) << "trainer ended: " << exit.Describe() << " worker=" << worker
                                << " job=" << job_id << " epoch=" << epoch << " rank=" << rank;
              EndFolderCheck(job_id, /*now=*/true);
              if (*told) {
                post_({worker, run, TrainerExited{.exit_code = exit.code, .signal = exit.signal}});
              } else {
                post_({worker, run, ExitedWith(std::move(exit))});
              }
            }};
  }

  // To be called once a trainer: a kill of the kernel's is counted for one only.
  TrainerExited ExitedWith(TrainerExit exit) {
    const bool killed_by_kernel =
        exit.signal == SIGKILL && exit.error.empty() && oom_kills_.TakeOne();
    if (!exit.error.empty()) {
      exit.last_log_lines.push_back(absl::StrCat("(killed by its agent: ", exit.error, ")"));
    }
    return {.exit_code = exit.code,
            .signal = exit.signal,
            .last_log_lines = std::move(exit.last_log_lines),
            .oom_killed = killed_by_kernel};
  }

  const Options options_;
  const std::function<void(RunEvent)> post_;
  OomKills oom_kills_;
  Mutex mu_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);  // by worker
  std::deque<StartTrainerAction> starts_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<SharedFolderCheck>> over_ ABSL_GUARDED_BY(mu_);
  FolderGate gate_;
  std::thread launcher_;
};

TrainerSet::TrainerSet(Options options, std::function<void(RunEvent)> post)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(post))) {}
TrainerSet::~TrainerSet() = default;
void TrainerSet::Start(const StartTrainerAction& action) { impl_->Start(action); }
void TrainerSet::Send(const std::string& worker, int64_t run, const AgentToTrainer& message) {
  impl_->Send(worker, run, message);
}
void TrainerSet::Signal(const std::string& worker, int64_t run, int signal) {
  impl_->Signal(worker, run, signal);
}
void TrainerSet::End(const std::string& worker, int64_t run, absl::Duration grace,
                     absl::string_view reason) {
  impl_->End(worker, run, grace, reason);
}
int64_t TrainerSet::PidOf(const std::string& worker, int64_t run) {
  return impl_->PidOf(worker, run);
}
void TrainerSet::Forget(const std::string& worker, int64_t run) { impl_->Forget(worker, run); }

}  // namespace muster
