// A job spec from a file, with --set applied, and everything that is wrong with it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/command.h"
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace muster {

OptionSpec SetOption();

struct LoadedSpec {
  std::string json;  // as read, with --set applied
  JobSpec spec;
  std::vector<SpecProblem> problems;
};

// Parses the file ("-": standard input) and checks what needs no file system. NOT_FOUND and the
// like when the file can't be read; INVALID_ARGUMENT for a malformed --set.
absl::StatusOr<LoadedSpec> LoadSpec(const std::string& path, const std::vector<std::string>& set);
// The same of a spec's text. INVALID_ARGUMENT for a malformed --set.
absl::StatusOr<LoadedSpec> LoadSpecText(std::string json, const std::vector<std::string>& set);

// The spec of an offline command's first argument with its --set options. When it can't be read or
// has problems these are printed, and the command ends with kExitUsage: nullopt.
std::optional<JobSpec> LoadGoodSpec(const Invocation& invocation);

// Adds what a run on this machine would find missing: files, and features of the trainer.
void CheckForRun(LoadedSpec* loaded);

// One problem a line on stderr, and how many there are.
void PrintProblems(const std::string& path, const std::vector<SpecProblem>& problems);

}  // namespace muster
