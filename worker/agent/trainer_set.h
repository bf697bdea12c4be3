// The trainer processes of an agent, one a worker at most: starts them on a thread of its own (the
// check of a spec's files may hang on a network file system, heartbeats must not) and turns what
// they do into RunEvents. The trainers of a job with several agents wait until checkpoint.save is
// known to be one folder (shared_folder_check.h). Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/core/agent_machine.h"
#include "worker/core/core_split.h"

namespace muster {

class TrainerSet {
 public:
  struct Options {
    std::string program;     // muster-trainer
    std::string log_folder;  // of all jobs
    std::string node;        // this one, for messages
    // The rendezvous, as SharedFolderCheck wants it.
    std::function<void(const std::string& job_id, const StoreRequestMessage&,
                       std::function<void(StoreReplyMessage)> reply)>
        ask;
    std::map<std::string, WorkerCores> cores;  // by worker; those that are missing are not bound
    std::string oom_file;                      // see OomFile
  };
  // `post` may block (a flood of log lines then waits in the trainer's pipe); it must return once
  // its receiver has gone.
  TrainerSet(Options options, std::function<void(RunEvent)> post);
  // Kills and reaps every trainer.
  ~TrainerSet();

  void Start(const StartTrainerAction& action);
  void Send(const std::string& worker, int64_t run, const AgentToTrainer& message);
  void Signal(const std::string& worker, int64_t run, int signal);
  // Closes the control socket, kills after the grace; of a trainer that is not started yet, as soon
  // as it is.
  void End(const std::string& worker, int64_t run, absl::Duration grace, absl::string_view reason);
  // 0: it is not started yet, or not here.
  int64_t PidOf(const std::string& worker, int64_t run);
  // Call once its exit was handled; not from `post`.
  void Forget(const std::string& worker, int64_t run);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace muster
