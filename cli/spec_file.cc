#include "cli/spec_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/output.h"
#include "common/base/status.h"
#include "common/preflight/spec_files.h"
#include "common/spec/supported.h"

namespace muster {

OptionSpec SetOption() {
  return {.name = "--set",
          .value = "section.field=value",
          .help = "replace a field of the spec; may be given repeatedly",
          .repeated = true};
}

absl::StatusOr<LoadedSpec> LoadSpec(const std::string& path, const std::vector<std::string>& set) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
  } else {
    std::ifstream file(path);
    if (file) text << file.rdbuf();
    if (!file || file.bad()) {
      return absl::NotFoundError(
          absl::StrCat("cannot read the spec ", path, ": ", strerror(errno)));
    }
  }
  return LoadSpecText(text.str(), set);
}

absl::StatusOr<LoadedSpec> LoadSpecText(std::string json, const std::vector<std::string>& set) {
  LoadedSpec loaded{.json = std::move(json)};
  // A document that is broken can't be set into: its own faults come first.
  if (!set.empty()) {
    absl::StatusOr<std::string> changed = ApplySetOptions(loaded.json, set);
    if (changed.ok()) {
      loaded.json = *std::move(changed);
    } else if (ParsedSpec parsed = ParseJobSpec(loaded.json);
               parsed.problems.size() != 1 || !parsed.problems[0].field.empty()) {
      return changed.status();
    }
  }
  ParsedSpec parsed = ParseJobSpec(loaded.json);
  loaded.spec = std::move(parsed.spec);
  loaded.problems = std::move(parsed.problems);
  return loaded;
}

std::optional<JobSpec> LoadGoodSpec(const Invocation& invocation) {
  const std::string& path = invocation.arguments[0];
  absl::StatusOr<LoadedSpec> loaded = LoadSpec(path, invocation.GetAll("--set"));
  if (!loaded.ok()) {
    PrintError(loaded.status().message());
    return std::nullopt;
  }
  if (!loaded->problems.empty()) {
    PrintProblems(path, loaded->problems);
    return std::nullopt;
  }
  return std::move(loaded->spec);
}

void CheckForRun(LoadedSpec* loaded) {
  const auto add = [&](std::vector<SpecProblem> more) {
    loaded->problems.insert(loaded->problems.end(), std::make_move_iterator(more.begin()),
                            std::make_move_iterator(more.end()));
  };
  // Of a spec that could not be read well, both would complain about defaults.
  if (loaded->problems.empty()) add(UnsupportedFeatures(loaded->spec));
  add(CheckSpecFiles(loaded->spec));
}

void PrintProblems(const std::string& path, const std::vector<SpecProblem>& problems) {
  for (const SpecProblem& problem : problems) std::cerr << problem.ToString() << "\n";
  PrintError(absl::StrCat(path, ": ", problems.size(),
                          problems.size() == 1 ? " problem" : " problems",
                          "; nothing was started; ", problems.size() == 1 ? "" : "first ",
                          "correct ", problems[0].ToString()));
}

}  // namespace muster
