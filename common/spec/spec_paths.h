// The files and folders that a spec names, for whoever can look at the file system: the command
// line before it submits, the agent before it starts a trainer. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/spec/job_spec.h"

namespace muster {

struct SpecPath {
  enum class Need {
    kReadableFile,
    kReadableFolder,
    kWritableFolder,  // it, or the nearest parent that exists, must be writable
  };
  std::string field;  // "section.field"
  std::string path;   // as written; a data prefix gives its .bin and its .idx
  Need need = Need::kReadableFile;
};

std::vector<SpecPath> SpecPaths(const JobSpec& spec);

}  // namespace muster
