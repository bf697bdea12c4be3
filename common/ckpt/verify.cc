#include "common/ckpt/verify.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/ckpt/crc32c.h"
#include "common/ckpt/layout.h"
#include "common/files/file_ops.h"
#include "common/files/mapped_file.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// Folder names in `root`, any order; empty when it cannot be read.
std::vector<std::string> FolderNames(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  return names;
}

std::string CrcMismatch(int64_t begin, int64_t end, uint32_t expected, uint32_t actual) {
  return absl::StrFormat("bytes %d to %d are damaged: crc32c is %08x, the manifest says %08x",
                         begin, end, actual, expected);
}

// What is wrong with one file's bytes.
std::vector<std::string> VerifyFile(const std::string& path, const ManifestFile& listed,
                                    const std::vector<const ManifestSlice*>& slices) {
  auto file = MappedFile::Open(path);
  if (!file.ok()) return {std::string(file.status().message())};
  const absl::string_view bytes = (*file)->bytes();
  if (static_cast<int64_t>(bytes.size()) != listed.bytes) {
    return {absl::StrCat("has ", bytes.size(), " bytes, the manifest says ", listed.bytes)};
  }
  std::vector<std::string> problems;
  const auto check = [&](int64_t begin, int64_t end, uint32_t expected, absl::string_view what) {
    const uint32_t actual =
        Crc32c(bytes.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    if (actual != expected) {
      problems.push_back(absl::StrCat(what, ": ", CrcMismatch(begin, end, expected, actual)));
    }
  };
  check(0, listed.header_bytes, listed.header_crc32c, "header");
  int64_t covered = listed.header_bytes;
  for (const ManifestSlice* slice : slices) {
    if (slice->begin != covered) {
      problems.push_back(absl::StrCat("no checksum covers bytes ", covered, " to ", slice->begin));
    }
    check(slice->begin, slice->end, slice->crc32c, "data");
    covered = slice->end;
  }
  if (covered != listed.bytes) {
    problems.push_back(absl::StrCat("no checksum covers bytes ", covered, " to ", listed.bytes));
  }
  return problems;
}

}  // namespace

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestName);
  ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  absl::StatusOr<Manifest> manifest = ManifestFromJson(text);
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  if (absl::Status status = CheckManifest(*manifest); !status.ok()) {
    return absl::DataLossError(absl::StrCat(path, ": ", status.message()));
  }
  return manifest;
}

absl::StatusOr<Manifest> CheckComplete(const std::string& folder) {
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder));
  for (const auto& [name, file] : manifest.content.files) {
    const std::string path = absl::StrCat(folder, "/", name);
    std::error_code error;
    const auto size = fs::file_size(path, error);
    if (error) return absl::DataLossError(absl::StrCat(path, ": ", error.message()));
    if (static_cast<int64_t>(size) != file.bytes) {
      return absl::DataLossError(
          absl::StrCat(path, ": has ", size, " bytes, the manifest says ", file.bytes));
    }
  }
  return manifest;
}

std::vector<int64_t> ListCheckpoints(const std::string& root) {
  std::set<int64_t> iterations;
  for (const std::string& name : FolderNames(root)) {
    if (const auto iteration = IterationOfFolder(name)) iterations.insert(*iteration);
  }
  return {iterations.begin(), iterations.end()};
}

absl::StatusOr<FoundCheckpoint> FindCheckpoint(const std::string& root,
                                               std::optional<int64_t> step) {
  FoundCheckpoint found;
  // A folder that was moved away while another took its name is as good, but comes second.
  const auto try_folder = [&](const std::string& name) {
    found.path = absl::StrCat(root, "/", name);
    absl::StatusOr<Manifest> manifest = CheckComplete(found.path);
    if (manifest.ok()) {
      found.manifest = *std::move(manifest);
      return true;
    }
    found.notes.push_back(std::string(manifest.status().message()));
    return false;
  };
  const auto try_iteration = [&](int64_t iteration) {
    if (try_folder(CheckpointFolderName(iteration))) return true;
    std::error_code error;
    return fs::exists(absl::StrCat(root, "/", ReplacedFolderName(iteration)), error) &&
           try_folder(ReplacedFolderName(iteration));
  };

  if (step.has_value()) {
    if (try_iteration(*step)) return found;
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint.ckpt_step=", *step, " is not a whole checkpoint: ", found.notes.front()));
  }
  const absl::StatusOr<std::string> tracker = ReadWholeFile(absl::StrCat(root, "/", kTrackerName));
  std::string named;
  if (tracker.ok()) {
    const absl::StatusOr<std::string> folder = FolderOfTracker(*tracker);
    if (!folder.ok()) {
      found.notes.push_back(std::string(folder.status().message()));
    } else {
      named = *folder;
      const std::optional<int64_t> iteration = IterationOfFolder(named);
      if (iteration.has_value() ? try_iteration(*iteration) : try_folder(named)) return found;
    }
  } else if (!absl::IsNotFound(tracker.status())) {
    found.notes.push_back(std::string(tracker.status().message()));
  }
  std::vector<int64_t> iterations = ListCheckpoints(root);
  std::reverse(iterations.begin(), iterations.end());
  for (const int64_t iteration : iterations) {
    if (CheckpointFolderName(iteration) == named) continue;
    if (try_iteration(iteration)) return found;
  }
  if (found.notes.empty()) return absl::NotFoundError(absl::StrCat("no checkpoint in ", root));
  return absl::DataLossError(
      absl::StrCat("no whole checkpoint in ", root, ": ", found.notes.front()));
}

absl::StatusOr<VerifyResult> VerifyCheckpoint(const std::string& folder) {
  VerifyResult result;
  ASSIGN_OR_RETURN(result.manifest, ReadManifest(folder));
  const ManifestPart& content = result.manifest.content;
  std::map<std::string, std::vector<const ManifestSlice*>> slices_of;
  for (const auto& [name, tensor] : content.tensors) {
    for (const ManifestSlice& slice : tensor.slices) slices_of[slice.file].push_back(&slice);
  }
  for (auto& [name, slices] : slices_of) {
    std::sort(slices.begin(), slices.end(), [](const ManifestSlice* a, const ManifestSlice* b) {
      return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
    });
  }
  for (const auto& [name, file] : content.files) {
    for (const std::string& problem :
         VerifyFile(absl::StrCat(folder, "/", name), file, slices_of[name])) {
      result.problems.push_back(absl::StrCat(name, ": ", problem));
    }
    ++result.num_files;
    result.num_bytes += file.bytes;
  }
  for (const std::string& name : FolderNames(folder)) {
    if (name != kManifestName && !content.files.contains(name)) {
      result.problems.push_back(absl::StrCat(name, ": is not part of the checkpoint"));
    }
  }
  return result;
}

}  // namespace muster
