#include "common/ckpt/commit.h"

#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/ckpt/verify.h"

namespace muster {
namespace {

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// The manifest first: what is left after a crash in between is no checkpoint any more, instead of
// one with holes.
absl::Status DeleteCheckpoint(FileOps& files, const std::string& folder) {
  RETURN_IF_ERROR(files.RemoveAll(absl::StrCat(folder, "/", kManifestName)));
  return files.RemoveAll(folder);
}

std::optional<int64_t> TrackedIteration(const std::string& root) {
  const absl::StatusOr<std::string> text = ReadWholeFile(absl::StrCat(root, "/", kTrackerName));
  if (!text.ok()) return std::nullopt;
  const absl::StatusOr<std::string> folder = FolderOfTracker(*text);
  return folder.ok() ? IterationOfFolder(*folder) : std::nullopt;
}

// Aside folders in `root`: of attempts that failed or crashed. Nobody writes in any of them now.
std::vector<std::string> AbandonedFolders(const std::string& root) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    if (IsAsideFolder(it->path().filename().string())) paths.push_back(it->path().string());
  }
  return paths;
}

}  // namespace

absl::Status WriteSyncedFile(FileOps& files, const std::string& path, absl::string_view bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.Create(path));
  RETURN_IF_ERROR(file->Append(bytes));
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::StatusOr<CommittedCheckpoint> CommitCheckpoint(FileOps& files, const std::string& root,
                                                     const Manifest& manifest,
                                                     const RetentionOptions& retention) {
  RETURN_IF_ERROR(CheckManifest(manifest));
  const std::string aside =
      absl::StrCat(root, "/", AsideFolderName(manifest.iteration, manifest.epoch));
  const std::string replaced = absl::StrCat(root, "/", ReplacedFolderName(manifest.iteration));
  CommittedCheckpoint committed{
      .path = absl::StrCat(root, "/", CheckpointFolderName(manifest.iteration))};
  const std::optional<int64_t> previous = TrackedIteration(root);

  RETURN_IF_ERROR(
      WriteSyncedFile(files, absl::StrCat(aside, "/", kManifestName), ManifestToJson(manifest)));
  RETURN_IF_ERROR(files.SyncDirectory(aside));
  if (Exists(committed.path)) {
    // `replaced` may be the only whole one when there is no folder of the plain name; here there
    // is one, so it is a leftover.
    RETURN_IF_ERROR(DeleteCheckpoint(files, replaced));
    RETURN_IF_ERROR(files.Rename(committed.path, replaced));
  }
  if (absl::Status status = files.Rename(aside, committed.path); !status.ok()) {
    if (Exists(replaced)) (void)files.Rename(replaced, committed.path);
    return status;
  }
  RETURN_IF_ERROR(files.SyncDirectory(root));
  RETURN_IF_ERROR(WriteFileAtomically(files, absl::StrCat(root, "/", kTrackerName),
                                      TrackerText(manifest.iteration)));

  // The checkpoint stands. What cannot be deleted now costs space, not the save.
  std::vector<std::string> doomed = AbandonedFolders(root);
  if (Exists(replaced)) doomed.push_back(replaced);
  for (const int64_t iteration :
       CheckpointsToDelete(ListCheckpoints(root), manifest.iteration, previous, retention)) {
    doomed.push_back(absl::StrCat(root, "/", CheckpointFolderName(iteration)));
    doomed.push_back(absl::StrCat(root, "/", ReplacedFolderName(iteration)));
  }
  for (const std::string& path : doomed) {
    if (absl::Status status = DeleteCheckpoint(files, path); !status.ok()) {
      committed.notes.push_back(std::string(status.message()));
    }
  }
  return committed;
}

}  // namespace muster
