// The command line as a table: each command has a name, a line of help, its options and its
// function; parsing, help and the nearest name on a typo follow from the table. Parsing is pure.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// What `muster` and its daemons exit with.
enum ExitCode : int {
  kExitDone = 0,
  kExitJobFailed = 1,
  kExitUsage = 2,  // usage or bad spec
  kExitNoCoordinator = 3,
  kExitRerunElsewhere = 16,
  kExitValidationFailed = 17,
  kExitInterrupted = 130,
};

struct OptionSpec {
  std::string name;   // "--json"
  std::string value;  // "DIR"; empty: a flag
  std::string help;
  bool repeated = false;
  std::string short_name;  // "-f", or empty
};

// A command line or a path, and what a person reads beside it.
struct Noted {
  std::string text, note;
};

struct Invocation;

struct Command {
  std::string name;       // "data preprocess" has two words
  std::string arguments;  // "JOB", "[JOB]", for people
  std::string help;       // one line
  std::string details;    // paragraphs, parted by an empty line; for the manual
  size_t min_arguments = 0, max_arguments = 0;
  std::vector<OptionSpec> options;
  std::vector<Noted> examples;
  std::vector<Noted> files;   // that it reads or writes, beside its arguments
  bool exits_as_job = false;  // its exit code is the job's (with --watch, where it has that)
  std::string failure;        // what exit code 1 means, where that is not a refused call
  std::function<int(const Invocation&)> run;
  bool passes_options_on = false;  // unknown options are another program's: kept in `arguments`
};

// A parsed command line.
struct Invocation {
  const Command* command = nullptr;
  std::vector<std::string> arguments;
  std::map<std::string, std::vector<std::string>> options;  // by long name; a flag has one ""

  bool Has(const std::string& option) const { return options.contains(option); }
  // The last value given, or `fallback`.
  std::string Get(const std::string& option, const std::string& fallback = "") const;
  std::vector<std::string> GetAll(const std::string& option) const;
  // INVALID_ARGUMENT when it is not a whole number from `least` on.
  absl::StatusOr<int64_t> GetInt(const std::string& option, int64_t fallback, int64_t least) const;
};

// `words`: what follows "muster". INVALID_ARGUMENT: an unknown command or option (with the nearest
// known name), a missing value, too few or too many arguments.
absl::StatusOr<Invocation> ParseCommandLine(const std::vector<Command>& commands,
                                            const std::vector<std::string>& words);

// The command that `words` name. INVALID_ARGUMENT as above.
absl::StatusOr<const Command*> FindCommand(const std::vector<Command>& commands,
                                           const std::vector<std::string>& words);

// Every exit code and what it means.
std::vector<std::pair<int, std::string>> ExitCodeMeanings();

// All commands, or one with its options.
std::string HelpText(const std::vector<Command>& commands);
std::string HelpText(const Command& command);

}  // namespace muster
