#include "cli/man.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace muster {
namespace {

// Plain text as roff: what has a meaning there loses it.
std::string Roff(absl::string_view text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"},
                                                   {"-", "\\-"},
                                                   {"'", "\\(aq"},
                                                   {"`", "\\(ga"},
                                                   {"^", "\\(ha"},
                                                   {"~", "\\(ti"}});
  if (!escaped.empty() && escaped[0] == '.') escaped.insert(0, "\\&");
  return escaped;
}

class Page {
 public:
  Page(absl::string_view name, absl::string_view help) {
    absl::StrAppend(&text_, ".\\\" Written by `muster man`; ./dev golden writes it anew.\n.TH ",
                    Roff(absl::AsciiStrToUpper(name)), " 1 \"\" \"Muster ", MUSTER_VERSION,
                    "\" \"Muster\"\n.nh\n.ad l\n");
    Section("NAME");
    absl::StrAppend(&text_, Roff(name), " \\- ", Roff(help), "\n");
  }
  void Section(absl::string_view title) { absl::StrAppend(&text_, ".SH ", title, "\n"); }
  void Paragraphs(absl::string_view text) {
    for (absl::string_view paragraph : absl::StrSplit(text, "\n\n", absl::SkipEmpty())) {
      absl::StrAppend(&text_, ".PP\n", Roff(paragraph), "\n");
    }
  }
  // What it is, indented below it what it means. `term` is roff.
  void Item(absl::string_view term, absl::string_view text) {
    absl::StrAppend(&text_, ".TP\n", term, "\n", Roff(text), "\n");
  }
  void Example(const Noted& example) {
    std::string note = example.note;
    if (!note.empty()) note[0] = absl::ascii_toupper(note[0]);
    absl::StrAppend(&text_, ".PP\n", Roff(note), ":\n.PP\n.in +4n\n.EX\n", Roff(example.text),
                    "\n.EE\n.in\n");
  }
  void Raw(absl::string_view line) { absl::StrAppend(&text_, line, "\n"); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string Bold(absl::string_view text) { return absl::StrCat("\\fB", Roff(text), "\\fR"); }
std::string Italic(absl::string_view text) { return absl::StrCat("\\fI", Roff(text), "\\fR"); }

std::string Reference(const Command& command) {
  return absl::StrCat(Bold(ManPageName(command)), "(1)");
}

bool HasOption(const Command& command, absl::string_view name) {
  return std::any_of(command.options.begin(), command.options.end(),
                     [name](const OptionSpec& option) { return option.name == name; });
}

void AddExitCodes(const Command& command, Page* page) {
  const bool calls = HasOption(command, "--coordinator");
  page->Section("EXIT STATUS");
  page->Item(Bold("0"),
             command.exits_as_job ? "Done; a job that was followed has completed." : "Done.");
  if (command.exits_as_job) {
    page->Item(Bold("1"), "The job failed, or the coordinator refused the request.");
  } else if (!command.failure.empty()) {
    page->Item(Bold("1"), command.failure);
  } else if (calls) {
    page->Item(Bold("1"), "The coordinator refused the request.");
  }
  page->Item(Bold("2"), calls ? "Wrong usage, a bad spec, a name that is not known, or no token."
                              : "Wrong usage, or a file that cannot be read or is no good.");
  if (calls) page->Item(Bold("3"), "No coordinator answers.");
  if (command.exits_as_job) {
    page->Item(Bold("16"), "The job left to be rerun elsewhere.");
    page->Item(Bold("17"), "The job left because a result failed its validation.");
  }
  if (command.exits_as_job || HasOption(command, "--follow")) {
    page->Item(Bold("130"),
               command.exits_as_job ? "Interrupted, or the job was cancelled." : "Interrupted.");
  }
  page->Raw(".PP\nThe last line on standard error says what went wrong first, and what to do.");
}

void AddEnvironment(Page* page) {
  page->Section("ENVIRONMENT");
  page->Item(Bold("MUSTER_COORDINATOR"),
             "HOST:PORT of the coordinator where --coordinator is not given; without both it is "
             "127.0.0.1:7700.");
  page->Item(Bold("MUSTER_TOKEN_FILE"),
             "The file with the cluster's token where --token-file is not given.");
  page->Item(Bold("NO_COLOR"), "If set and not empty, nothing is coloured.");
}

constexpr char kTokenFile[] =
    "The cluster's secret: a regular file of mode 0600 or 0400 with one line of 16 to 4096 visible "
    "ASCII characters.";

}  // namespace

std::string ManPageName(const Command& command) {
  return absl::StrCat("muster-", absl::StrReplaceAll(command.name, {{" ", "-"}}));
}

std::string ManPage(const Command& command, const std::vector<Command>& commands) {
  Page page(ManPageName(command), command.help);
  page.Section("SYNOPSIS");
  std::string synopsis = Bold(absl::StrCat("muster ", command.name));
  if (!command.arguments.empty()) absl::StrAppend(&synopsis, " ", Italic(command.arguments));
  if (!command.options.empty()) absl::StrAppend(&synopsis, " [", Italic("OPTIONS"), "]");
  page.Raw(synopsis);
  page.Section("DESCRIPTION");
  page.Paragraphs(command.details.empty()
                      ? absl::StrCat(absl::AsciiStrToUpper(command.help.substr(0, 1)),
                                     command.help.substr(1), ".")
                      : command.details);
  if (!command.options.empty()) {
    page.Section("OPTIONS");
    for (const OptionSpec& option : command.options) {
      std::string term;
      if (!option.short_name.empty()) term = absl::StrCat(Bold(option.short_name), ", ");
      absl::StrAppend(&term, Bold(option.name));
      if (!option.value.empty()) absl::StrAppend(&term, " ", Italic(option.value));
      page.Item(term, option.help);
    }
  }
  AddExitCodes(command, &page);
  const bool calls = HasOption(command, "--coordinator");
  if (calls) AddEnvironment(&page);
  if (calls || !command.files.empty()) {
    page.Section("FILES");
    for (const Noted& file : command.files) page.Item(Italic(file.text), file.note);
    if (calls) page.Item(Italic("the file of --token-file"), kTokenFile);
  }
  if (!command.examples.empty()) {
    page.Section("EXAMPLES");
    for (const Noted& example : command.examples) page.Example(example);
  }
  page.Section("SEE ALSO");
  std::vector<std::string> others = {absl::StrCat(Bold("muster"), "(1)")};
  const std::vector<std::string> words = absl::StrSplit(command.name, ' ');
  for (const Command& other : commands) {  // the others of its group
    if (words.size() == 2 && other.name != command.name &&
        other.name.compare(0, words[0].size() + 1, words[0] + " ") == 0) {
      others.push_back(Reference(other));
    }
  }
  page.Raw(absl::StrJoin(others, ",\n"));
  return page.text();
}

std::string ManPage(const std::vector<Command>& commands) {
  Page page("muster", "trains large language models on a cluster");
  page.Section("SYNOPSIS");
  page.Raw(absl::StrCat(Bold("muster"), " ", Italic("COMMAND"), " [", Italic("ARGUMENTS"), "] [",
                        Italic("OPTIONS"), "]"));
  page.Section("DESCRIPTION");
  page.Paragraphs(
      "Submits jobs to a Muster cluster, shows what they do, and works offline on specs, data and "
      "checkpoints. A cluster is one muster-coordinator, which owns every decision, and a "
      "muster-worker on each node. muster local runs all of it on this machine.\n\nEvery command "
      "that reads prints for people, or with --json for programs, with stable field names. "
      "muster help COMMAND shows the options of one.");
  page.Section("COMMANDS");
  for (const Command& command : commands) page.Item(Reference(command), command.help);
  page.Section("EXIT STATUS");
  for (const auto& [code, meaning] : ExitCodeMeanings()) {
    page.Item(Bold(absl::StrCat(code)), absl::StrCat(meaning, "."));
  }
  AddEnvironment(&page);
  page.Section("FILES");
  page.Item(Italic("SPEC"),
            "A job: a JSON file. examples/ has some, docs/spec.md lists every field.");
  page.Item(Italic("the file of --token-file"), kTokenFile);
  page.Section("EXAMPLES");
  page.Example({"muster local examples/demo.json", "A whole cluster on this machine, for one job"});
  page.Example({"muster submit spec.json --watch --coordinator head:7700 --token-file ~/token",
                "A job on a cluster, followed to its end"});
  page.Example({"muster man submit | man -l -", "The manual of a command"});
  page.Section("SEE ALSO");
  std::vector<std::string> others;
  for (const Command& command : commands) others.push_back(Reference(command));
  page.Raw(absl::StrJoin(others, ",\n"));
  return page.text();
}

namespace {

int WriteAll(const std::string& folder, const std::vector<Command>& commands) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::vector<std::pair<std::string, std::string>> pages = {{"muster", ManPage(commands)}};
  for (const Command& command : commands) {
    pages.emplace_back(ManPageName(command), ManPage(command, commands));
  }
  for (const auto& [name, text] : pages) {
    const std::string path = absl::StrCat(folder, "/", name, ".1");
    std::ofstream file(path);
    if (!(file << text) || !file.flush()) {
      PrintError(absl::StrCat("cannot write ", path, ": ", strerror(errno)));
      return kExitUsage;
    }
  }
  return kExitDone;
}

int Man(const Invocation& invocation) {
  const std::vector<Command> commands = AllCommands();
  if (invocation.Has("--write")) return WriteAll(invocation.Get("--write"), commands);
  if (invocation.arguments.empty()) {
    std::cout << ManPage(commands);
    return kExitDone;
  }
  // The parser knows what to say of a name that is none.
  const absl::StatusOr<const Command*> command = FindCommand(commands, invocation.arguments);
  if (!command.ok()) {
    PrintError(command.status().message());
    return kExitUsage;
  }
  std::cout << ManPage(**command, commands);
  return kExitDone;
}

}  // namespace

Command ManCommand() {
  return {
      .name = "man",
      .arguments = "[COMMAND]",
      .help = "print a manual page, of muster or of one command",
      .details =
          "Prints the page as roff. muster man submit | man -l - shows it; --write puts all pages "
          "into a folder, for MANPATH or a package.",
      .max_arguments = 2,
      .options = {{.name = "--write", .value = "DIR", .help = "write all pages into this folder"}},
      .examples = {{"muster man submit | man -l -", "read the page of submit"},
                   {"muster man --write /usr/local/share/man/man1", "install them all"}},
      .run = Man};
}

}  // namespace muster
