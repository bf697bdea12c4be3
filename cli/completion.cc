#include "cli/completion.h"

#include <iostream>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace muster {
namespace {

// What a placeholder of the table stands for.
enum class Kind { kOther, kFile, kFolder };

Kind KindOf(absl::string_view placeholder) {
  for (const char* file : {"SPEC", "FILE", "PATH", "PREFIX"}) {
    if (absl::StrContains(placeholder, file)) return Kind::kFile;
  }
  return absl::StrContains(placeholder, "DIR") ? Kind::kFolder : Kind::kOther;
}

// The first words of all commands, each once, with what a person reads beside it.
std::vector<std::pair<std::string, std::string>> FirstWords(const std::vector<Command>& commands) {
  std::vector<std::pair<std::string, std::string>> words;
  for (const Command& command : commands) {
    const std::vector<std::string> parts = absl::StrSplit(command.name, ' ');
    if (parts.size() == 1) {
      words.emplace_back(parts[0], command.help);
    } else if (!words.empty() && words.back().first == parts[0]) {
      absl::StrAppend(&words.back().second, ", ", parts[1]);
    } else {
      words.emplace_back(parts[0], parts[1]);
    }
  }
  words.emplace_back("help", "the commands, or one with its options");
  return words;
}

// The second words of the commands that have two, by their first.
std::map<std::string, std::vector<std::string>> Groups(const std::vector<Command>& commands) {
  std::map<std::string, std::vector<std::string>> groups;
  for (const Command& command : commands) {
    const std::vector<std::string> parts = absl::StrSplit(command.name, ' ');
    if (parts.size() == 2) groups[parts[0]].push_back(parts[1]);
  }
  return groups;
}

// In single quotes, for each of the three shells.
std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// ---- bash

// The flag of compgen.
std::string BashFiles(Kind kind) {
  switch (kind) {
    case Kind::kFile:
      return "-f";
    case Kind::kFolder:
      return "-d";
    case Kind::kOther:
      return "''";
  }
  return "";
}

std::string BashScript(const std::vector<Command>& commands) {
  std::vector<std::string> first;
  for (const auto& [word, help] : FirstWords(commands)) first.push_back(word);
  std::string script = absl::StrCat(
      "# Completion of muster for bash: source <(muster completion bash)\n_muster() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
      "  local name=${COMP_WORDS[1]} words='' files=''\n"
      "  if ((COMP_CWORD == 1)); then\n    mapfile -t COMPREPLY < <(compgen -W ",
      Quoted(absl::StrJoin(first, " ")), " -- \"$cur\")\n    return\n  fi\n");
  for (const auto& [group, seconds] : Groups(commands)) {
    absl::StrAppend(&script, "  if [[ $name == ", group,
                    " ]]; then\n    if ((COMP_CWORD == 2)); then\n"
                    "      mapfile -t COMPREPLY < <(compgen -W ",
                    Quoted(absl::StrJoin(seconds, " ")),
                    " -- \"$cur\")\n      return\n    fi\n    name+=\" ${COMP_WORDS[2]}\"\n  fi\n");
  }
  absl::StrAppend(&script, "  case \"$name\" in\n");
  for (const Command& command : commands) {
    std::vector<std::string> names;
    std::string values;
    for (const OptionSpec& option : command.options) {
      names.push_back(option.name);
      if (option.value.empty()) continue;
      absl::StrAppend(&values, "        ", option.name,
                      ") words='' files=", BashFiles(KindOf(option.value)), " ;;\n");
    }
    absl::StrAppend(&script, "    ", Quoted(command.name),
                    ")\n      words=", Quoted(absl::StrJoin(names, " ")),
                    " files=", BashFiles(KindOf(command.arguments)), "\n");
    if (command.name == "completion") absl::StrAppend(&script, "      words+=' bash zsh fish'\n");
    if (command.name == "man") {
      absl::StrAppend(&script, "      words+=", Quoted(" " + absl::StrJoin(first, " ")), "\n");
    }
    if (!values.empty()) {
      absl::StrAppend(&script, "      case \"$prev\" in\n", values, "      esac\n");
    }
    absl::StrAppend(&script, "      ;;\n");
  }
  absl::StrAppend(&script, "    help) words=", Quoted(absl::StrJoin(first, " ")),
                  " ;;\n  esac\n"
                  "  mapfile -t COMPREPLY < <(compgen -W \"$words\" $files -- \"$cur\")\n"
                  "  [[ -z $files ]] || compopt -o filenames 2>/dev/null || true\n}\n"
                  "complete -F _muster muster\n");
  return script;
}

// ---- zsh

// A message inside _arguments: brackets and colons have a meaning there.
std::string ZshText(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshAction(Kind kind) {
  switch (kind) {
    case Kind::kFile:
      return "_files";
    case Kind::kFolder:
      return "_files -/";
    case Kind::kOther:
      return " ";
  }
  return "";
}

std::string ZshScript(const std::vector<Command>& commands) {
  std::string script =
      "#compdef muster\n# Completion of muster for zsh: put it as _muster into a folder of $fpath, "
      "or source it after compinit.\n_muster() {\n  local -a commands\n  commands=(\n";
  for (const auto& [word, help] : FirstWords(commands)) {
    absl::StrAppend(&script, "    ", Quoted(absl::StrCat(word, ":", help)), "\n");
  }
  absl::StrAppend(&script,
                  "  )\n  if ((CURRENT == 2)); then\n    _describe command commands\n    return\n"
                  "  fi\n  local name=$words[2]\n  shift words\n  ((CURRENT--))\n");
  for (const auto& [group, seconds] : Groups(commands)) {
    absl::StrAppend(&script, "  if [[ $name == ", group,
                    " ]]; then\n    if ((CURRENT == 2)); then\n      compadd ",
                    absl::StrJoin(seconds, " "),
                    "\n      return\n    fi\n    name+=\" $words[2]\"\n    shift words\n"
                    "    ((CURRENT--))\n  fi\n");
  }
  absl::StrAppend(&script, "  case $name in\n");
  for (const Command& command : commands) {
    absl::StrAppend(&script, "    (", Quoted(command.name), ")\n      _arguments");
    for (const OptionSpec& option : command.options) {
      for (const std::string& name : {option.name, option.short_name}) {
        if (name.empty()) continue;
        std::string entry =
            absl::StrCat(option.repeated ? "*" : "", name, "[", ZshText(option.help), "]");
        if (!option.value.empty()) {
          absl::StrAppend(&entry, ":", ZshText(option.value), ":", ZshAction(KindOf(option.value)));
        }
        absl::StrAppend(&script, " \\\n        ", Quoted(entry));
      }
    }
    if (command.max_arguments > 0) {
      const std::string action = command.name == "completion" ? "(bash zsh fish)"
                                 : command.name == "man"      ? "{_describe command commands}"
                                                         : ZshAction(KindOf(command.arguments));
      absl::StrAppend(&script, " \\\n        ",
                      Quoted(absl::StrCat("*:", ZshText(command.arguments), ":", action)));
    }
    absl::StrAppend(&script, "\n      ;;\n");
  }
  absl::StrAppend(&script,
                  "    (help) _describe command commands ;;\n  esac\n}\n"
                  "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n  _muster \"$@\"\nelse\n"
                  "  compdef _muster muster\nfi\n");
  return script;
}

// ---- fish

std::string FishFiles(Kind kind) {
  switch (kind) {
    case Kind::kFile:
      return " -F";
    case Kind::kFolder:
      return " -f -a '(__fish_complete_directories)'";
    case Kind::kOther:
      return " -f";
  }
  return "";
}

std::string FishScript(const std::vector<Command>& commands) {
  std::string script =
      "# Completion of muster for fish: muster completion fish | source\ncomplete -c muster -f\n";
  std::vector<std::string> first;
  for (const auto& [word, help] : FirstWords(commands)) {
    first.push_back(word);
    absl::StrAppend(&script, "complete -c muster -n __fish_use_subcommand -a ", word, " -d ",
                    Quoted(help), "\n");
  }
  for (const Command& command : commands) {
    const std::vector<std::string> parts = absl::StrSplit(command.name, ' ');
    std::string condition = absl::StrCat("__fish_seen_subcommand_from ", parts[0]);
    if (parts.size() == 2) {
      absl::StrAppend(&script, "complete -c muster -n '", condition,
                      "; and not __fish_seen_subcommand_from ",
                      absl::StrJoin(Groups(commands).at(parts[0]), " "), "' -a ", parts[1], " -d ",
                      Quoted(command.help), "\n");
      absl::StrAppend(&condition, "; and __fish_seen_subcommand_from ", parts[1]);
    }
    const std::string line = absl::StrCat("complete -c muster -n '", condition, "'");
    for (const OptionSpec& option : command.options) {
      absl::StrAppend(&script, line, " -l ", option.name.substr(2));
      if (!option.short_name.empty()) absl::StrAppend(&script, " -s ", option.short_name.substr(1));
      if (!option.value.empty()) {
        absl::StrAppend(&script, " -r", FishFiles(KindOf(option.value)));
      }
      absl::StrAppend(&script, " -d ", Quoted(option.help), "\n");
    }
    if (command.name == "completion") absl::StrAppend(&script, line, " -a 'bash zsh fish'\n");
    if (command.name == "man") {
      absl::StrAppend(&script, line, " -a ", Quoted(absl::StrJoin(first, " ")), "\n");
    }
    if (KindOf(command.arguments) != Kind::kOther) {
      absl::StrAppend(&script, line, FishFiles(KindOf(command.arguments)), "\n");
    }
  }
  return script;
}

int Completion(const Invocation& invocation) {
  const absl::StatusOr<std::string> script =
      CompletionScript(invocation.arguments[0], AllCommands());
  if (!script.ok()) {
    PrintError(script.status().message());
    return kExitUsage;
  }
  std::cout << *script;
  return kExitDone;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const std::string& shell,
                                             const std::vector<Command>& commands) {
  if (shell == "bash") return BashScript(commands);
  if (shell == "zsh") return ZshScript(commands);
  if (shell == "fish") return FishScript(commands);
  return absl::InvalidArgumentError(
      absl::StrCat("there is no completion for the shell ", shell, "; it is bash, zsh or fish"));
}

Command CompletionCommand() {
  return {.name = "completion",
          .arguments = "bash|zsh|fish",
          .help = "print a completion script for a shell",
          .details = "Prints a script that completes commands, options and file names.",
          .min_arguments = 1,
          .max_arguments = 1,
          .examples = {{"source <(muster completion bash)", "in ~/.bashrc"},
                       {"muster completion zsh >~/.zfunc/_muster", "in a folder of $fpath"},
                       {"muster completion fish | source", "in config.fish"}},
          .run = Completion};
}

}  // namespace muster
