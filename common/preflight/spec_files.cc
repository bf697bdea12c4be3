#include "common/preflight/spec_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/spec/spec_paths.h"

namespace muster {
namespace {

bool IsFolder(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

class Checker {
 public:
  void NeedFile(const std::string& field, const std::string& path) {
    if (IsFolder(path)) {
      Add(field, path, "it is a folder, not a file");
      return;
    }
    // Opened, not only looked at: rights on network file systems are known only then.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      Add(field, path,
          absl::StrCat("the file can't be read: ", strerror(errno),
                       "; each node of the job needs it at this path"));
      return;
    }
    close(fd);
  }

  void NeedFolder(const std::string& field, const std::string& path) {
    if (access(path.c_str(), R_OK) != 0) {
      Add(field, path,
          absl::StrCat("the folder can't be read: ", strerror(errno),
                       "; each node of the job needs it at this path"));
    } else if (!IsFolder(path)) {
      Add(field, path, "it is not a folder");
    }
  }

  // The folder is there, or its nearest parent that is there lets it be made.
  void NeedWritableFolder(const std::string& field, const std::string& path) {
    std::string at = path;
    while (access(at.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
      const size_t slash = at.find_last_of('/');
      if (slash == std::string::npos) at.assign(1, '.');  // relative: the folder we are in
      if (slash != std::string::npos) at.resize(slash == 0 ? 1 : slash);
    }
    if (!IsFolder(at)) {
      Add(field, path,
          absl::StrCat("the folder can't be made: ", at, " is not a folder; choose another path"));
    } else if (access(at.c_str(), W_OK | X_OK) != 0) {
      Add(field, path,
          absl::StrCat("the folder ", at, " can't be written: ", strerror(errno),
                       "; choose one that this user may write"));
    }
  }

  std::vector<SpecProblem> TakeProblems() { return std::move(problems_); }

 private:
  void Add(const std::string& field, const std::string& value, std::string message) {
    problems_.push_back({field, value, std::move(message)});
  }

  std::vector<SpecProblem> problems_;
};

}  // namespace

std::vector<SpecProblem> CheckSpecFiles(const JobSpec& spec) {
  Checker checker;
  for (const SpecPath& path : SpecPaths(spec)) {
    switch (path.need) {
      case SpecPath::Need::kReadableFile:
        checker.NeedFile(path.field, path.path);
        break;
      case SpecPath::Need::kReadableFolder:
        checker.NeedFolder(path.field, path.path);
        break;
      case SpecPath::Need::kWritableFolder:
        checker.NeedWritableFolder(path.field, path.path);
        break;
    }
  }
  return checker.TakeProblems();
}

}  // namespace muster
