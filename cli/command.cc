#include "cli/command.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/spec/nearest_name.h"

namespace muster {
namespace {

std::string DidYouMean(absl::string_view given, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(given, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

// The command that the first one or two words name, and how many words that took.
absl::StatusOr<std::pair<const Command*, size_t>> Find(const std::vector<Command>& commands,
                                                       const std::vector<std::string>& words) {
  std::vector<std::string> names, of_group;
  for (const Command& command : commands) {
    names.push_back(command.name);
    const std::vector<std::string> parts = absl::StrSplit(command.name, ' ');
    if (parts.size() <= words.size() && std::equal(parts.begin(), parts.end(), words.begin())) {
      return std::make_pair(&command, parts.size());
    }
    if (parts.size() == 2 && parts[0] == words[0]) of_group.push_back(command.name);
  }
  if (!of_group.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("muster ", words[0], " needs one of: ", absl::StrJoin(of_group, ", "),
                     words.size() > 1 ? DidYouMean(words[0] + " " + words[1], of_group) : ""));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no command ", words[0], DidYouMean(words[0], names)));
}

absl::StatusOr<const OptionSpec*> FindOption(const Command& command, absl::string_view name) {
  std::vector<std::string> names;
  for (const OptionSpec& option : command.options) {
    if (name == option.name || (!option.short_name.empty() && name == option.short_name)) {
      return &option;
    }
    names.push_back(option.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("muster ", command.name, " has no option ", name, DidYouMean(name, names)));
}

}  // namespace

std::string Invocation::Get(const std::string& option, const std::string& fallback) const {
  const auto found = options.find(option);
  return found == options.end() ? fallback : found->second.back();
}

std::vector<std::string> Invocation::GetAll(const std::string& option) const {
  const auto found = options.find(option);
  return found == options.end() ? std::vector<std::string>{} : found->second;
}

absl::StatusOr<int64_t> Invocation::GetInt(const std::string& option, int64_t fallback,
                                           int64_t least) const {
  if (!Has(option)) return fallback;
  int64_t value = 0;
  if (!absl::SimpleAtoi(Get(option), &value) || value < least) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, "=", Get(option), ": must be a whole number from ", least, " on"));
  }
  return value;
}

absl::StatusOr<Invocation> ParseCommandLine(const std::vector<Command>& commands,
                                            const std::vector<std::string>& words) {
  if (words.empty()) return absl::InvalidArgumentError("a command is needed");
  ASSIGN_OR_RETURN(const auto found, Find(commands, words));
  Invocation invocation{.command = found.first};
  const Command& command = *found.first;
  bool only_arguments = false;
  for (size_t i = found.second; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (only_arguments || word.size() < 2 || word[0] != '-') {
      invocation.arguments.push_back(word);
      continue;
    }
    if (word == "--") {
      only_arguments = true;
      continue;
    }
    const size_t equals = absl::StartsWith(word, "--") ? word.find('=') : std::string::npos;
    const absl::StatusOr<const OptionSpec*> option = FindOption(command, word.substr(0, equals));
    if (!option.ok()) {
      if (!command.passes_options_on) return option.status();
      invocation.arguments.push_back(word);
      continue;
    }
    const OptionSpec& spec = **option;
    std::string value;
    if (spec.value.empty()) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat(spec.name, " takes no value"));
      }
    } else if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (++i < words.size()) {
      value = words[i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat(spec.name, " needs a value: ", spec.value));
    }
    std::vector<std::string>& values = invocation.options[spec.name];
    if (!spec.repeated) values.clear();
    values.push_back(value);
  }
  if (command.passes_options_on) return invocation;
  const size_t count = invocation.arguments.size();
  if (count < command.min_arguments || count > command.max_arguments) {
    return absl::InvalidArgumentError(
        command.max_arguments == 0
            ? absl::StrCat("muster ", command.name, " takes no argument, not ",
                           invocation.arguments[0])
            : absl::StrCat("usage: muster ", command.name, " ", command.arguments));
  }
  return invocation;
}

absl::StatusOr<const Command*> FindCommand(const std::vector<Command>& commands,
                                           const std::vector<std::string>& words) {
  ASSIGN_OR_RETURN(const auto found, Find(commands, words));
  return found.first;
}

std::vector<std::pair<int, std::string>> ExitCodeMeanings() {
  return {{kExitDone, "done"},
          {kExitJobFailed, "the job failed, or the coordinator refused the request"},
          {kExitUsage, "usage, a bad spec, a name that is not known, or no token"},
          {kExitNoCoordinator, "no coordinator answers"},
          {kExitRerunElsewhere, "the job left to be rerun elsewhere"},
          {kExitValidationFailed, "the job left because a result failed its validation"},
          {kExitInterrupted, "interrupted, or the job was cancelled"}};
}

std::string HelpText(const std::vector<Command>& commands) {
  std::string text =
      "muster: trains large language models on a cluster\n\nusage: muster COMMAND [ARGUMENTS] "
      "[OPTIONS]\n\n";
  size_t width = 0;
  for (const Command& command : commands) width = std::max(width, command.name.size());
  for (const Command& command : commands) {
    absl::StrAppend(&text, "  ", command.name, std::string(width + 2 - command.name.size(), ' '),
                    command.help, "\n");
  }
  std::vector<std::string> codes;
  for (const auto& [code, meaning] : ExitCodeMeanings()) {
    codes.push_back(absl::StrFormat("  %3d  %s", code, meaning));
  }
  absl::StrAppend(&text,
                  "\nmuster help COMMAND shows its options, muster man COMMAND its manual page.\n"
                  "The coordinator: --coordinator, else MUSTER_COORDINATOR, else 127.0.0.1:7700.\n"
                  "Its token, where it asks for one: --token-file, else MUSTER_TOKEN_FILE.\n\n"
                  "exit codes:\n",
                  absl::StrJoin(codes, "\n"), "\n");
  return text;
}

std::string HelpText(const Command& command) {
  std::string text = absl::StrCat("muster ", command.name, command.arguments.empty() ? "" : " ",
                                  command.arguments, "\n  ", command.help, "\n");
  std::vector<std::pair<std::string, std::string>> rows;
  size_t width = 0;
  for (const OptionSpec& option : command.options) {
    std::string name = option.name;
    if (!option.short_name.empty()) name = absl::StrCat(option.short_name, ", ", name);
    if (!option.value.empty()) absl::StrAppend(&name, " ", option.value);
    width = std::max(width, name.size());
    rows.emplace_back(std::move(name), option.help);
  }
  if (!rows.empty()) absl::StrAppend(&text, "\n");
  for (const auto& [name, help] : rows) {
    absl::StrAppend(&text, "  ", name, std::string(width + 2 - name.size(), ' '), help, "\n");
  }
  if (!command.examples.empty()) absl::StrAppend(&text, "\nexamples:\n");
  for (const auto& [line, note] : command.examples) {
    absl::StrAppend(&text, "  ", line, "\n      ", note, "\n");
  }
  return text;
}

}  // namespace muster
