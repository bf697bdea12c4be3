// The file operations that a checkpoint or dataset becomes visible through, behind virtuals so that
// tests can fail or "crash" at each of them. Every call returns a status whose message names the
// operation, the path and errno's text. Thread-safe (different paths).
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// One file being written from its start. Destroying it without Close closes it unsynced.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // fsync: the bytes are on the disk when it returns OK.
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

class FileOps {
 public:
  virtual ~FileOps() = default;
  // Truncates an existing file.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  virtual absl::Status CreateDirectories(const std::string& path) = 0;
  // Replaces an existing file; not a folder that is not empty.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // A file, or a folder with all it holds; OK when there is none.
  virtual absl::Status RemoveAll(const std::string& path) = 0;
  // fsync of a folder: names created, renamed and removed in it are on the disk.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;

  static FileOps& Real();
};

// path + ".partial", fsync, rename, fsync of the folder: readers see the old bytes or the new ones.
absl::Status WriteFileAtomically(FileOps& files, const std::string& path, absl::string_view bytes);

// The whole file. NOT_FOUND when there is none.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

// The folder of a path: "a/b" -> "a", "b" -> ".".
std::string ParentDirectory(const std::string& path);

}  // namespace muster
