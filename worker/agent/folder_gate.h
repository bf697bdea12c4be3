// Holds back the trainers of a job with several agents until checkpoint.save is known to be one
// folder (shared_folder_check.h), once a job. Thread-safe; calls back under no lock.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "common/spec/job_spec.h"
#include "worker/agent/shared_folder_check.h"
#include "worker/core/agent_machine.h"

namespace muster {

class FolderGate {
 public:
  using AskRendezvous = decltype(SharedFolderCheck::Options::ask);
  // `release`: starts that were held back, to be asked for again. On any thread.
  FolderGate(std::string node, AskRendezvous ask,
             std::function<void(std::vector<StartTrainerAction>)> release);
  ~FolderGate();  // ends all checks

  // May this start go on? nullopt: it is not known yet, and `action` is held back.
  std::optional<absl::Status> Ask(const StartTrainerAction& action, const JobSpec& spec);
  // A start that is held back is to wait no longer.
  std::optional<StartTrainerAction> TakeHeld(const std::string& worker, int64_t run);
  // A trainer of the job trains, or (`now`) its attempt is over. What is returned removes a mark
  // when it goes, which may hang with its file system; null: nothing.
  std::unique_ptr<SharedFolderCheck> EndCheck(const std::string& job_id, bool now);

 private:
  // checkpoint.save of a job, as far as this node has to ask about it.
  struct Folder {
    std::unique_ptr<SharedFolderCheck> check;  // until the trainers train, or one has ended
    std::optional<absl::Status> result;
    std::vector<StartTrainerAction> held;  // until there is a result
    std::optional<absl::Duration> end_at;  // of the check
  };

  void Note(const std::string& job_id, absl::Status result);

  const std::string node_;
  const AskRendezvous ask_;
  const std::function<void(std::vector<StartTrainerAction>)> release_;
  RealClock clock_;
  Mutex mu_;
  std::map<std::string, Folder> folders_ ABSL_GUARDED_BY(mu_);  // by job
};

}  // namespace muster
