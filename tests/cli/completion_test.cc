#include "cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/commands.h"
#include "tests/integration/process.h"

namespace muster {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

std::string ScriptFor(const std::string& shell) {
  const auto script = CompletionScript(shell, AllCommands());
  EXPECT_TRUE(script.ok()) << script.status();
  return script.value_or("");
}

class CompletionTest : public ::testing::Test {
 protected:
  // What bash offers for the last of these words.
  std::vector<std::string> Bash(const std::vector<std::string>& words) {
    PutFileText(folder_ / "muster.bash", ScriptFor("bash"));
    const Result result =
        RunCommand(folder_.path(),
                   {"/bin/bash", "-euc",
                    absl::StrCat("cd ", folder_.path(), "; source ./muster.bash; COMP_WORDS=('",
                                 absl::StrJoin(words, "' '"), "'); COMP_CWORD=", words.size() - 1,
                                 "; COMPREPLY=(); _muster; printf '%s\\n' \"${COMPREPLY[@]}\"")});
    EXPECT_EQ(result.code, 0) << result.err;
    return absl::StrSplit(result.out, '\n', absl::SkipEmpty());
  }
  // Does this shell accept the script? Skips where it is not installed.
  Result Check(const std::string& shell, const std::string& line) {
    PutFileText(folder_ / "script", ScriptFor(shell));
    return RunCommand(folder_.path(), {"/usr/bin/env", shell, "-c", line},
                      {{"SCRIPT", folder_ / "script"}, {"HOME", folder_.path()}});
  }
  TempFolder folder_;
};

TEST_F(CompletionTest, EveryCommandAndOptionIsInEveryScript) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = ScriptFor(shell);
    for (const Command& command : AllCommands()) {
      for (const absl::string_view word : absl::StrSplit(command.name, ' ')) {
        EXPECT_THAT(script, HasSubstr(std::string(word))) << shell;
      }
      for (const OptionSpec& option : command.options) {
        const std::string name =
            shell == std::string("fish") ? " -l " + option.name.substr(2) : option.name;
        EXPECT_THAT(script, HasSubstr(name)) << shell << " " << command.name;
      }
    }
  }
  EXPECT_TRUE(absl::IsInvalidArgument(CompletionScript("tcsh", AllCommands()).status()));
}

TEST_F(CompletionTest, BashOffersCommandsOptionsAndFiles) {
  PutFileText(folder_ / "spec.json", "{}");
  EXPECT_THAT(Bash({"muster", "sub"}), ElementsAre("submit"));
  EXPECT_THAT(Bash({"muster", ""}), IsSupersetOf({"local", "data", "ckpt", "help"}));
  EXPECT_THAT(Bash({"muster", "data", "p"}), ElementsAre("preprocess"));
  EXPECT_THAT(Bash({"muster", "submit", "--to"}), ElementsAre("--token-file"));
  EXPECT_THAT(Bash({"muster", "submit", "sp"}), ElementsAre("spec.json"));
  EXPECT_THAT(Bash({"muster", "submit", "--token-file", ""}), Contains("spec.json"));
  EXPECT_THAT(Bash({"muster", "submit", "--set", ""}), ElementsAre()) << "it is free text";
  EXPECT_THAT(Bash({"muster", "status", "sp"}), ElementsAre()) << "a job is no file";
  EXPECT_THAT(Bash({"muster", "ckpt", "verify", "--js"}), ElementsAre("--json"));
  EXPECT_THAT(Bash({"muster", "completion", "z"}), ElementsAre("zsh"));
  EXPECT_THAT(Bash({"muster", "man", "res"}), ElementsAre("restart"));
  EXPECT_THAT(Bash({"muster", "restart", "job-1", "--w"}), ElementsAre("--watch"));
  EXPECT_THAT(Bash({"muster", "no-such", ""}), ElementsAre());
}

TEST_F(CompletionTest, ZshAcceptsItsScript) {
  const Result result = Check("zsh",
                              "zsh -n $SCRIPT && autoload -U compinit && compinit -u && "
                              "source $SCRIPT && echo $_comps[muster]");
  if (result.code == 127) GTEST_SKIP() << "no zsh here";
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "_muster\n") << result.err;
}

TEST_F(CompletionTest, FishOffersCommandsAndOptions) {
  const auto offers = [&](const std::string& words) {
    return Check("fish", absl::StrCat("cd $HOME; source $SCRIPT; complete -C '", words, "'"));
  };
  const Result commands = offers("muster sub");
  if (commands.code == 127) GTEST_SKIP() << "no fish here";
  EXPECT_THAT(commands.out, HasSubstr("submit\tqueue a job")) << commands.err;
  EXPECT_THAT(offers("muster submit --to").out, HasSubstr("--token-file\t"));
  EXPECT_THAT(offers("muster submit sc").out, HasSubstr("script"));
  EXPECT_THAT(offers("muster status sc").out, Not(HasSubstr("script")));
  EXPECT_THAT(offers("muster data p").out, HasSubstr("preprocess\t"));
}

}  // namespace
}  // namespace muster
