// No program of a cluster with numeric addresses looks a name up, neither through files nor through
// DNS: on a cluster, a resolver that is slow or that knows another network is where recoveries go
// to die. Seen with strace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::IsEmpty;

// `words` under strace; the lines of its trace. Files that are opened, connections, programs.
std::vector<std::string> Trace(const TempFolder& folder, std::vector<std::string> words,
                               Result* result) {
  const std::string file = folder / "trace";
  std::vector<std::string> command = {
      "/usr/bin/env", "strace", "-f", "--seccomp-bpf",
      "-o",           file,     "-e", "trace=execve,open,openat,connect,sendto,sendmmsg"};
  command.insert(command.end(), words.begin(), words.end());
  *result = RunCommand(folder.path(), std::move(command));
  std::vector<std::string> lines;
  std::istringstream text(FileText(file));
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

bool Holds(const std::vector<std::string>& lines, const std::string& text) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return absl::StrContains(line, text); });
}

// The lines that belong to a look-up, found or not.
std::vector<std::string> LookUps(const std::vector<std::string>& lines) {
  std::vector<std::string> found;
  for (const std::string& line : lines) {
    for (const char* sign :
         {"/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf",
          "libnss_", "/nscd/socket", "/run/systemd/resolve", "htons(53)"}) {
      if (absl::StrContains(line, sign)) found.push_back(line);
    }
  }
  return found;
}

class NameLookupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result result;
    const std::vector<std::string> lines = Trace(folder_, {"/bin/true"}, &result);
    if (result.code != 0 || !Holds(lines, "execve")) {
      GTEST_SKIP() << "strace is not there or may not trace here: " << result.err;
    }
  }
  TempFolder folder_;
};

TEST_F(NameLookupTest, ALookUpWouldBeSeen) {
  Result result;
  EXPECT_FALSE(
      LookUps(Trace(folder_, {"/usr/bin/env", "getent", "hosts", "a-name.invalid"}, &result))
          .empty());
}

TEST_F(NameLookupTest, AClusterLooksNoNameUp) {
  json spec = SmallSpec(2, 20);
  spec["checkpoint"] = {{"save", folder_ / "checkpoints"}, {"save_interval", 10}};
  PutFileText(folder_ / "spec.json", spec.dump());
  Result result;
  const std::vector<std::string> lines = Trace(folder_,
                                               {Binary("muster"), "local", folder_ / "spec.json",
                                                "--workers", "2", "--state-dir", folder_ / "state"},
                                               &result);
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* program : {"muster-coordinator", "muster-worker", "muster-trainer"}) {
    EXPECT_TRUE(Holds(lines, absl::StrCat("execve(\"", Binary(program)))) << program;
  }
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return absl::StrContains(line, "connect(") && absl::StrContains(line, "127.0.0.1");
  })) << "connections are seen";
  const std::vector<std::string> found = LookUps(lines);
  EXPECT_THAT(found, IsEmpty()) << absl::StrJoin(found, "\n");
}

}  // namespace
}  // namespace muster
