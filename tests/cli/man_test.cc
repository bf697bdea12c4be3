#include "cli/man.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

std::vector<std::pair<std::string, std::string>> AllPages() {
  const std::vector<Command> commands = AllCommands();
  std::vector<std::pair<std::string, std::string>> pages = {{"muster", ManPage(commands)}};
  for (const Command& command : commands) {
    pages.emplace_back(ManPageName(command), ManPage(command, commands));
  }
  return pages;
}

// ./dev golden writes them anew.
TEST(ManGoldenTest, TheFilesAreWhatTheTableSays) {
  const std::string folder = absl::StrCat(MUSTER_SOURCE_DIR, "/docs/man");
  size_t count = 0;
  for (const auto& [name, text] : AllPages()) {
    const std::string path = absl::StrCat(folder, "/", name, ".1");
    if (std::getenv("MUSTER_UPDATE_GOLDENS") != nullptr) PutFileText(path, text);
    EXPECT_EQ(FileText(path), text) << "run this test with MUSTER_UPDATE_GOLDENS=1";
    ++count;
  }
  const std::filesystem::directory_iterator files(folder), end;
  EXPECT_EQ(std::distance(files, end), count) << "a page of a command that is gone lies there";
}

TEST(ManTest, EveryCommandHasExitCodesAndAnExample) {
  const std::vector<Command> commands = AllCommands();
  for (const Command& command : commands) {
    const std::string page = ManPage(command, commands);
    for (const char* part : {".SH NAME\n", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n",
                             ".SH EXIT STATUS\n", ".SH EXAMPLES\n", ".SH SEE ALSO\n"}) {
      EXPECT_THAT(page, HasSubstr(part)) << command.name;
    }
    EXPECT_FALSE(command.details.empty()) << command.name;
  }
}

TEST(ManTest, GroffHasNothingToSay) {
  TempFolder folder;
  if (RunCommand(folder.path(), {"/usr/bin/env", "groff", "--version"}).code != 0) {
    GTEST_SKIP() << "no groff here";
  }
  ASSERT_EQ(RunCommand(folder.path(), {Binary("muster"), "man", "--write", folder / "man"}).code,
            0);
  std::vector<std::string> command = {"/usr/bin/env", "groff", "-man", "-Tascii", "-ww"};
  for (const auto& [name, text] : AllPages()) {
    const std::string path = absl::StrCat(folder.path(), "/man/", name, ".1");
    EXPECT_EQ(FileText(path), text);
    command.push_back(path);
  }
  const Result result = RunCommand(folder.path(), command);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("queue a job on a cluster"));
}

TEST(ManTest, OnePageIsPrintedAndATypoIsTold) {
  TempFolder folder;
  const Result page = RunCommand(folder.path(), {Binary("muster"), "man", "ckpt", "verify"});
  EXPECT_EQ(page.code, 0);
  EXPECT_THAT(page.out, HasSubstr(".TH MUSTER\\-CKPT\\-VERIFY 1"));
  const Result typo = RunCommand(folder.path(), {Binary("muster"), "man", "sumbit"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(typo.err, HasSubstr("did you mean submit?"));
}

}  // namespace
}  // namespace muster
