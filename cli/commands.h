// Every command of `muster`, one a file.
#pragma once

#include <vector>

#include "cli/command.h"

namespace muster {

Command LocalCommand();
Command SubmitCommand();
Command RestartCommand();
Command ListCommand();
Command StatusCommand();
Command WatchCommand();
Command LogsCommand();
Command CancelCommand();
Command CheckpointCommand();
Command EvaluateCommand();
Command TraceCommand();
Command EventsCommand();
Command MetricsCommand();
Command WorkersCommand();
Command DrainCommand();
Command CordonCommand();
Command UncordonCommand();
Command ReplaceCommand();
Command TopologyCommand();
Command PlanCommand();
Command ScheduleCommand();
Command GenerateCommand();
Command DataPreprocessCommand();
Command DataInspectCommand();
Command CkptInspectCommand();
Command CkptVerifyCommand();
Command CompletionCommand();
Command ManCommand();
Command VersionCommand();

// In the order of the help text.
std::vector<Command> AllCommands();

// What main() does with the words after "muster".
int RunMuster(const std::vector<std::string>& words);

}  // namespace muster
