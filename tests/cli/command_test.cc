#include "cli/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CommandLineTest, OptionsAndArgumentsMixFreely) {
  const std::vector<Command> commands = AllCommands();
  const auto parsed = ParseCommandLine(
      commands, {"submit", "--set", "a.b=1", "spec.json", "--watch", "--set=c.d=e=f"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->command->name, "submit");
  EXPECT_THAT(parsed->arguments, ElementsAre("spec.json"));
  EXPECT_THAT(parsed->GetAll("--set"), ElementsAre("a.b=1", "c.d=e=f"));
  EXPECT_TRUE(parsed->Has("--watch"));
  EXPECT_FALSE(parsed->Has("--json"));
  EXPECT_EQ(parsed->Get("--coordinator", "fallback"), "fallback");
}

TEST(CommandLineTest, ShortNamesStandForTheLong) {
  const std::vector<Command> commands = AllCommands();
  const auto parsed = ParseCommandLine(commands, {"logs", "job", "-f", "--rank", "3"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->Has("--follow"));
  EXPECT_EQ(*parsed->GetInt("--rank", -1, 0), 3);
}

TEST(CommandLineTest, TwoWordCommands) {
  const std::vector<Command> commands = AllCommands();
  const auto parsed = ParseCommandLine(commands, {"data", "inspect", "prefix"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->command->name, "data inspect");
  EXPECT_THAT(parsed->arguments, ElementsAre("prefix"));
}

TEST(CommandLineTest, WordsAfterTwoDashesAreArguments) {
  const std::vector<Command> commands = AllCommands();
  const auto parsed = ParseCommandLine(commands, {"status", "--", "--odd"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->arguments, ElementsAre("--odd"));
}

TEST(CommandLineTest, FaultsSayWhatWouldBeRight) {
  struct Row {
    std::vector<std::string> words;
    const char* message;
  };
  const Row rows[] = {
      {{}, "a command is needed"},
      {{"sumbit", "x"}, "did you mean submit?"},
      {{"xyzzy"}, "there is no command xyzzy"},
      {{"data"}, "data preprocess, data inspect"},
      {{"data", "inspekt"}, "did you mean data inspect?"},
      {{"status"}, "usage: muster status JOB"},
      {{"status", "a", "b"}, "usage: muster status JOB"},
      {{"list", "a"}, "takes no argument"},
      {{"status", "a", "--jsn"}, "did you mean --json?"},
      {{"status", "a", "--json=1"}, "takes no value"},
      {{"submit", "a", "--set"}, "--set needs a value"},
  };
  const std::vector<Command> commands = AllCommands();
  for (const Row& row : rows) {
    const auto parsed = ParseCommandLine(commands, row.words);
    ASSERT_FALSE(parsed.ok()) << row.message;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(row.message));
  }
}

TEST(CommandLineTest, NumbersAreChecked) {
  const std::vector<Command> commands = AllCommands();
  for (const char* value : {"x", "-1", "1.5", ""}) {
    const auto parsed = ParseCommandLine(commands, {"logs", "job", std::string("--rank=") + value});
    ASSERT_TRUE(parsed.ok());
    EXPECT_FALSE(parsed->GetInt("--rank", -1, 0).ok()) << value;
  }
}

TEST(CommandLineTest, EveryCommandHasHelpAndEveryOptionSaysWhatItDoes) {
  const std::vector<Command> commands = AllCommands();
  const std::string overview = HelpText(commands);
  for (const Command& command : commands) {
    EXPECT_THAT(overview, HasSubstr("  " + command.name + " "));
    EXPECT_FALSE(command.help.empty()) << command.name;
    const std::string text = HelpText(command);
    for (const OptionSpec& option : command.options) {
      EXPECT_FALSE(option.help.empty()) << command.name << " " << option.name;
      EXPECT_THAT(text, HasSubstr(option.name));
    }
  }
}

}  // namespace
}  // namespace muster
