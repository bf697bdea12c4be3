// A cluster with a token (--token-file): a coordinator on every address of the machine, as real
// processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "the-token-of-this-cluster";

class TokenClusterTest : public ::testing::Test {
 protected:
  TokenClusterTest() : cluster_(FAKE_TRAINER, kToken) {}
  std::string OtherToken(mode_t mode) {
    const std::string path = cluster_.folder() / "other";
    PutFileText(path, "the-token-of-another-cluster\n");
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  Cluster cluster_;
};

TEST_F(TokenClusterTest, AJobRunsToItsEnd) {
  Process& agent = cluster_.StartAgent("node", 2);
  ASSERT_TRUE(cluster_.WaitForWorkers(2)) << cluster_.last_error;
  const std::string job = cluster_.Submit(SmallSpec(2, 20));
  ASSERT_NE(job, "") << cluster_.last_error;
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object()) << cluster_.last_error;
  EXPECT_EQ(status["state"], "COMPLETED") << status;
  EXPECT_EQ(status["iteration"], 20);
  // Neither the logs nor the command lines that `ps` shows hold the secret.
  for (const Process* process : {&agent, &cluster_.coordinator()}) {
    EXPECT_THAT(process->Stderr() + process->Stdout(), Not(HasSubstr(kToken)));
    EXPECT_THAT(FileText(absl::StrCat("/proc/", process->pid(), "/cmdline")),
                AllOf(HasSubstr("--token-file"), Not(HasSubstr(kToken))));
  }
}

TEST_F(TokenClusterTest, AnAgentWithoutTheTokenEndsWithAClearLine) {
  const std::string other = OtherToken(0600);
  Process& wrong = cluster_.StartAgent("wrong", 1, other);
  EXPECT_EQ(wrong.Wait(), 2);
  EXPECT_THAT(wrong.Stderr(),
              HasSubstr(absl::StrCat("muster-worker: the coordinator at ", cluster_.address(),
                                     " refuses the token of ", other)));
  Process& none = cluster_.StartAgent("none", 1, "");
  EXPECT_EQ(none.Wait(), 2);
  EXPECT_THAT(none.Stderr(), HasSubstr("needs a token: give --token-file FILE"));
  EXPECT_EQ(cluster_.MusterJson({"workers"}), json::array());
}

TEST_F(TokenClusterTest, ACommandWithoutTheTokenEndsWithAClearLine) {
  const std::string other = OtherToken(0600);
  const Result wrong = cluster_.Muster({"list", "--token-file", other});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr(absl::StrCat("the coordinator at ", cluster_.address(),
                                                " refuses the token of ", other)));
  const Result none = cluster_.Muster({"list", "--token-file", ""});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("needs a token: give --token-file FILE"));
  const Result readable = cluster_.Muster({"list", "--token-file", OtherToken(0644)});
  EXPECT_EQ(readable.code, 2);
  EXPECT_THAT(readable.err, AllOf(HasSubstr("has mode 0644"), HasSubstr("chmod 600")));
  const Result absent = cluster_.Muster({"list", "--token-file", "/nowhere/token"});
  EXPECT_EQ(absent.code, 2);
  EXPECT_THAT(absent.err, HasSubstr("token file /nowhere/token"));
}

TEST(AccessFlagsTest, ACoordinatorForOtherMachinesNeedsATokenFile) {
  TempFolder folder;
  const auto start = [&](std::vector<std::string> more) {
    std::vector<std::string> command = {Binary("muster-coordinator"), "--listen", "0.0.0.0:0",
                                        "--state-dir", folder / "state"};
    command.insert(command.end(), more.begin(), more.end());
    return RunCommand(folder.path(), command);
  };
  const Result without = start({});
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, HasSubstr("--token-file FILE"));
  PutFileText(folder / "token", "short\n");
  EXPECT_EQ(chmod((folder / "token").c_str(), 0600), 0);
  const Result with_short = start({"--token-file", folder / "token"});
  EXPECT_EQ(with_short.code, 2);
  EXPECT_THAT(with_short.err, AllOf(HasSubstr(folder / "token"), HasSubstr("16 to 4096")));
}

}  // namespace
}  // namespace muster
