// Commands that call a coordinator once: what they print, and how they fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/cli/fake_coordinator.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CallsTest : public ::testing::Test {
 protected:
  Result Muster(std::vector<std::string> words) {
    words.insert(words.begin(), Binary("muster"));
    words.insert(words.end(), {"--coordinator", coordinator_.address()});
    return RunCommand(folder_.path(), words);
  }
  void AddWorker(const std::string& name) {
    v1::WorkerStatus worker;
    worker.mutable_description()->set_name(name);
    worker.set_node("node");
    worker.set_state(v1::WORKER_STATE_ALIVE);
    coordinator_.AddWorker(worker);
  }
  TempFolder folder_;
  FakeCoordinator coordinator_;
};

TEST_F(CallsTest, RestartSubmitsTheSpecAgainWithChanges) {
  coordinator_.SetSpec(SmallSpec(2, 10).dump());
  const Result result = Muster({"restart", "job-1", "--set", "optimizer.lr=0.5"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "submitted job-2 (the spec of job-1 again)\n");
  ASSERT_EQ(coordinator_.submitted().size(), 1u);
  const json spec = json::parse(coordinator_.submitted()[0]);
  EXPECT_EQ(spec["optimizer"]["lr"], 0.5);
  EXPECT_EQ(spec["training"]["train_iters"], 10);

  EXPECT_EQ(json::parse(Muster({"restart", "job-1", "--json"}).out)["job_id"], "job-3");
  EXPECT_EQ(json::parse(coordinator_.submitted()[1]), SmallSpec(2, 10));
}

TEST_F(CallsTest, RestartWithABadChangeStartsNothing) {
  coordinator_.SetSpec(SmallSpec(2, 10).dump());
  const Result typo = Muster({"restart", "job-1", "--set", "optimizer.lrr=0.5"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_THAT(typo.err, HasSubstr("did you mean"));
  const Result value = Muster({"restart", "job-1", "--set", "optimizer.lr=-1"});
  EXPECT_EQ(value.code, 2);
  EXPECT_THAT(value.err, HasSubstr("the spec of job-1: 1 problem; nothing was started"));
  EXPECT_TRUE(coordinator_.submitted().empty());
}

TEST_F(CallsTest, DrainAndUndo) {
  AddWorker("node/0");
  EXPECT_EQ(Muster({"drain", "node/0"}).out, "node/0 takes no new rank\n");
  EXPECT_THAT(Muster({"workers"}).out, HasSubstr("ALIVE, draining"));
  EXPECT_EQ(Muster({"drain", "node/0", "--undo"}).out, "node/0 takes ranks again\n");
  const Result unknown = Muster({"drain", "nodo/0"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.err,
            "muster: \"nodo/0\" is no worker or node that is known; did you mean node/0?\n");
}

TEST_F(CallsTest, ANodeIsCordonedAndUncordoned) {
  AddWorker("node/0");
  AddWorker("node/1");
  EXPECT_EQ(Muster({"cordon", "node"}).out,
            "node/0 is cordoned and takes no new rank\nnode/1 is cordoned and takes no new rank\n");
  EXPECT_THAT(Muster({"workers"}).out, HasSubstr("ALIVE, cordoned"));
  const auto one = nlohmann::json::parse(Muster({"uncordon", "node/0", "--json"}).out);
  EXPECT_EQ(one["worker"], "node/0");
  EXPECT_EQ(one["cordoned"], false);
  EXPECT_TRUE(one["quarantined"].is_null());
  const auto all = nlohmann::json::parse(Muster({"uncordon", "node", "--json"}).out);
  EXPECT_EQ(all.size(), 2u);
  EXPECT_EQ(Muster({"cordon", "nodes"}).code, 2);
}

TEST_F(CallsTest, ARankIsReplaced) {
  EXPECT_EQ(Muster({"replace", "job-1", "--rank", "3"}).out,
            "rank 3 of job-1 moves from a/3 to any at the end of a step (muster events job-1)\n");
  const auto json = nlohmann::json::parse(
      Muster({"replace", "job-1", "--rank", "3", "--with", "b/0", "--json"}).out);
  EXPECT_EQ(json["to"], "b/0");
  EXPECT_EQ(json["rank"], 3);
  EXPECT_THAT(Muster({"replace", "job-1"}).err, HasSubstr("--rank R is needed"));
  EXPECT_EQ(Muster({"replace", "job-1", "--rank", "-1"}).code, 2);
  EXPECT_EQ(Muster({"replace", "job-1", "--rank", "9"}).code, 2);  // as the coordinator says
}

TEST_F(CallsTest, AnUnknownJobIsTold) {
  for (const char* command : {"status", "watch", "logs", "events", "metrics", "restart"}) {
    const Result result = Muster({command, "job-9"});
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_EQ(result.err, "muster: job \"job-9\" is not known; muster list shows the jobs\n");
  }
}

TEST_F(CallsTest, AFullDiskIsToldByListAndStatus) {
  coordinator_.SetStorageTrouble("the journal's disk is full");
  const Result list = Muster({"list"});
  EXPECT_EQ(list.code, 0);
  EXPECT_THAT(list.err, HasSubstr("starts no job now: the journal's disk is full"));
  EXPECT_THAT(list.out, HasSubstr("PRIORITY"));
  EXPECT_THAT(Muster({"status", "job-1"}).out, HasSubstr("the journal's disk is full"));
  EXPECT_EQ(json::parse(Muster({"status", "job-1", "--json"}).out)["storage_trouble"],
            "the journal's disk is full");
}

TEST_F(CallsTest, ARefusalIsNoAbsence) {
  struct Row {
    grpc::StatusCode status;
    int code;
    const char* text;
  };
  const Row rows[] = {
      {grpc::UNAVAILABLE, 1, "cannot do it now: the reason; try again later"},
      {grpc::FAILED_PRECONDITION, 1, "muster: the reason"},
      {grpc::RESOURCE_EXHAUSTED, 1, "muster: the reason"},
      {grpc::INVALID_ARGUMENT, 2, "muster: the reason"},
      {grpc::PERMISSION_DENIED, 2, "does not allow that: the reason"},
      {grpc::UNAUTHENTICATED, 2, "needs a token: give --token-file FILE"},
      {grpc::UNIMPLEMENTED, 1, "is of another version"},
  };
  for (const Row& row : rows) {
    coordinator_.Refuse(grpc::Status(row.status, "the reason"));
    const Result result = Muster({"status", "job-1"});
    EXPECT_EQ(result.code, row.code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(row.text));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST_F(CallsTest, ACoordinatorThatDoesNotAnswerIsExitCode3WithinALimit) {
  // Connections are taken in by the kernel, and nobody ever reads them.
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  socklen_t length = sizeof(address);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  const std::string name = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  const absl::Time start = absl::Now();
  const Result result =
      RunCommand(folder_.path(), {Binary("muster"), "list", "--coordinator", name});
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
  close(fd);
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, AllOf(StartsWith("muster: no coordinator answers"), HasSubstr(name),
                                HasSubstr("MUSTER_COORDINATOR")));
}

TEST_F(CallsTest, AnAddressThatIsNoneIsUsage) {
  const Result flag =
      RunCommand(folder_.path(), {Binary("muster"), "list", "--coordinator", "127.0.0.1"});
  EXPECT_EQ(flag.code, 2);
  EXPECT_THAT(flag.err, HasSubstr("--coordinator=127.0.0.1: must be HOST:PORT"));
  const Result variable =
      RunCommand(folder_.path(), {Binary("muster"), "list"}, {{"MUSTER_COORDINATOR", "here"}});
  EXPECT_EQ(variable.code, 2);
  EXPECT_THAT(variable.err, HasSubstr("MUSTER_COORDINATOR=here: must be HOST:PORT"));
}

// Whatever is wrong, the last line names it first and says where to look.
TEST_F(CallsTest, TheLastLineOfAFaultSaysWhatToDo) {
  EXPECT_THAT(Muster({"logs", "job-1", "--folow"}).err,
              HasSubstr("did you mean --follow? (muster help logs)\n"));
  EXPECT_THAT(Muster({"statsu", "job-1"}).err, HasSubstr("did you mean status? (muster help)\n"));
  json spec = SmallSpec(2, 10);
  spec["optimizer"]["lr"] = -1;
  spec["trainig"] = json::object();
  PutFileText(folder_ / "spec.json", spec.dump());
  const std::string text = Muster({"submit", folder_ / "spec.json"}).err;
  const std::string last = text.substr(text.rfind('\n', text.size() - 2) + 1);
  EXPECT_THAT(last, AllOf(StartsWith("muster: "), HasSubstr("2 problems; nothing was started; "
                                                            "first correct ")));
  EXPECT_TRUE(coordinator_.submitted().empty());
}

TEST_F(CallsTest, JsonOfEveryReaderParses) {
  coordinator_.AddStep(1);
  coordinator_.AddEvent("running", "");
  coordinator_.AddLog(0, "hello");
  AddWorker("node/0");
  for (const char* command : {"list", "workers"}) {
    const json parsed = json::parse(Muster({command, "--json"}).out, nullptr, false);
    ASSERT_TRUE(parsed.is_array() && parsed.size() == 1) << command;
  }
  for (const char* command : {"status", "logs", "events", "metrics"}) {
    const json parsed = json::parse(Muster({command, "job-1", "--json"}).out, nullptr, false);
    EXPECT_TRUE(parsed.is_object()) << command;
  }
}

}  // namespace
}  // namespace muster
