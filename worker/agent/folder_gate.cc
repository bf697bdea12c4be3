#include "worker/agent/folder_gate.h"

#include <algorithm>
#include <utility>

#include "common/runtime/log.h"

namespace muster {
namespace {

constexpr size_t kMaxFolders = 256;  // results of checks that are remembered
// How long rank 0's mark stays once the job trains. The trainers have met by then, so all agents
// have seen it; a trainer that does not wait for its peers must not take it away from them.
constexpr absl::Duration kMarkLife = absl::Seconds(15);

}  // namespace

FolderGate::FolderGate(std::string node, AskRendezvous ask,
                       std::function<void(std::vector<StartTrainerAction>)> release)
    : node_(std::move(node)), ask_(std::move(ask)), release_(std::move(release)) {}

FolderGate::~FolderGate() {
  std::map<std::string, Folder> folders;
  {
    MutexLock lock(&mu_);
    folders.swap(folders_);
  }
  // Each check waits for its callback; not under the lock.
}

std::optional<absl::Status> FolderGate::Ask(const StartTrainerAction& action, const JobSpec& spec) {
  const FolderRole role = FolderRoleOf(*action.launch, spec.checkpoint.save);
  const std::string& job_id = action.launch->job_id;
  MutexLock lock(&mu_);
  if (role == FolderRole::kNone) {
    // Later attempts do not ask, but a folder that was found to be another's is so still.
    const auto found = folders_.find(job_id);
    const bool is_wrong = found != folders_.end() && found->second.result &&
                          !found->second.result->ok() && !absl::IsCancelled(*found->second.result);
    return is_wrong ? found->second.result : absl::OkStatus();
  }
  if (folders_.size() > kMaxFolders) {
    std::erase_if(folders_, [](const auto& entry) {
      return entry.second.result.has_value() && entry.second.check == nullptr;
    });
  }
  Folder& folder = folders_[job_id];
  if (folder.result) return folder.result;
  folder.held.push_back(action);
  if (folder.check != nullptr) return std::nullopt;
  folder.check = std::make_unique<SharedFolderCheck>(
      SharedFolderCheck::Options{.role = role,
                                 .node = node_,
                                 .folder = *spec.checkpoint.save,
                                 .job_id = job_id,
                                 .epoch = action.launch->epoch,
                                 .ask = ask_},
      [this, job_id](absl::Status result) { Note(job_id, std::move(result)); });
  return std::nullopt;
}

std::optional<StartTrainerAction> FolderGate::TakeHeld(const std::string& worker, int64_t run) {
  MutexLock lock(&mu_);
  for (auto& [job_id, folder] : folders_) {
    const auto found = std::find_if(
        folder.held.begin(), folder.held.end(),
        [&](const StartTrainerAction& held) { return held.worker == worker && held.run == run; });
    if (found == folder.held.end()) continue;
    StartTrainerAction action = std::move(*found);
    folder.held.erase(found);
    return action;
  }
  return std::nullopt;
}

void FolderGate::Note(const std::string& job_id, absl::Status result) {
  if (!result.ok() && !absl::IsCancelled(result)) {
    MUSTER_LOG(kError) << result.message() << " job=" << job_id;
  }
  std::vector<StartTrainerAction> released;
  {
    MutexLock lock(&mu_);
    const auto found = folders_.find(job_id);
    if (found == folders_.end() || found->second.result) return;
    found->second.result = std::move(result);
    released.swap(found->second.held);
  }
  release_(std::move(released));
}

std::unique_ptr<SharedFolderCheck> FolderGate::EndCheck(const std::string& job_id, bool now) {
  MutexLock lock(&mu_);
  const auto found = folders_.find(job_id);
  if (found == folders_.end() || found->second.check == nullptr) return nullptr;
  Folder& folder = found->second;
  if (!folder.result) {
    if (!now || !folder.held.empty()) return nullptr;  // somebody still waits for it
    folder.result = absl::CancelledError("the attempt is over");
  }
  if (!folder.end_at) folder.end_at = clock_.Steady() + kMarkLife;
  if (!now && clock_.Steady() < *folder.end_at) return nullptr;
  return std::move(folder.check);
}

}  // namespace muster
