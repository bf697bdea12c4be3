#include "cli/commands.h"

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/output.h"

namespace muster {
namespace {

int Help(const std::vector<Command>& commands, const std::vector<std::string>& words) {
  if (words.empty()) {
    std::cout << HelpText(commands);
    return kExitDone;
  }
  const absl::StatusOr<const Command*> command = FindCommand(commands, words);
  if (!command.ok()) {
    PrintError(command.status().message());
    return kExitUsage;
  }
  std::cout << HelpText(**command);
  return kExitDone;
}

}  // namespace

std::vector<Command> AllCommands() {
  return {LocalCommand(),       SubmitCommand(),     RestartCommand(),        ListCommand(),
          StatusCommand(),      WatchCommand(),      LogsCommand(),           CancelCommand(),
          CheckpointCommand(),  EvaluateCommand(),   TraceCommand(),          EventsCommand(),
          MetricsCommand(),     WorkersCommand(),    DrainCommand(),          CordonCommand(),
          UncordonCommand(),    ReplaceCommand(),    TopologyCommand(),       PlanCommand(),
          ScheduleCommand(),    GenerateCommand(),   DataPreprocessCommand(), DataInspectCommand(),
          CkptInspectCommand(), CkptVerifyCommand(), CompletionCommand(),     ManCommand(),
          VersionCommand()};
}

int RunMuster(const std::vector<std::string>& words) {
  const std::vector<Command> commands = AllCommands();
  if (words.empty()) {
    std::cerr << HelpText(commands);
    return kExitUsage;
  }
  const std::string& first = words[0];
  if (first == "help" || first == "--help" || first == "-h") {
    return Help(commands, {words.begin() + 1, words.end()});
  }
  if (first == "--version") return RunMuster({"version"});
  for (size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    if (words[i] == "--help" || words[i] == "-h") {
      std::vector<std::string> name;
      for (size_t k = 0; k < i && words[k][0] != '-'; ++k) name.push_back(words[k]);
      // "muster status JOB --help": the command is the longest known beginning.
      while (name.size() > 1) {
        const std::string joined = absl::StrJoin(name, " ");
        bool known = false;
        for (const Command& command : commands) known |= command.name == joined;
        if (known) break;
        name.pop_back();
      }
      return Help(commands, name);
    }
  }
  const absl::StatusOr<Invocation> invocation = ParseCommandLine(commands, words);
  if (!invocation.ok()) {
    const absl::StatusOr<const Command*> command = FindCommand(commands, words);
    PrintError(absl::StrCat(invocation.status().message(), " (muster help",
                            command.ok() ? " " + (*command)->name : "", ")"));
    return kExitUsage;
  }
  return invocation->command->run(*invocation);
}

}  // namespace muster
