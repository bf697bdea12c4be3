// A network that is cut for 30 seconds between coordinator and agents, while the trainers reach
// each other: nothing restarts, no step is lost, training does not wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/cluster.h"
#include "tests/integration/network_namespaces.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int kCoordinator = 0, kFirst = 1, kSecond = 2;  // hosts
constexpr int kStepMs = 20;

class PartitionTest : public ::testing::Test {
 protected:
  PartitionTest() : hosts_(folder_.path(), 3) {}

  void SetUp() override {
    if (!hosts_.ok()) GTEST_SKIP() << hosts_.error();
    PutFileText(folder_ / "token", "a-token-of-this-test\n");
    ASSERT_EQ(chmod((folder_ / "token").c_str(), 0600), 0);
    address_ = hosts_.address(kCoordinator) + ":7700";
    Start(kCoordinator,
          {Binary("muster-coordinator"), "--listen", address_, "--http", "127.0.0.1:0",
           "--state-dir", folder_ / "coordinator", "--token-file", folder_ / "token"});
    for (const int host : {kFirst, kSecond}) {
      const std::string name = host == kFirst ? "first" : "second";
      Start(host, {Binary("muster-worker"), "--coordinator", address_, "--device", "cpu", "--name",
                   name, "--advertise", hosts_.address(host), "--state-dir", folder_ / name,
                   "--trainer", FAKE_TRAINER, "--token-file", folder_ / "token"});
    }
    ASSERT_TRUE(Eventually([&] {
      const json workers = Muster({"workers", "--json"});
      return workers.is_array() && workers.size() == 2 && workers[0]["state"] == "ALIVE" &&
             workers[1]["state"] == "ALIVE";
    })) << processes_[0]->Stderr()
        << processes_[1]->Stderr();
  }

  void Start(int host, std::vector<std::string> command) {
    processes_.push_back(
        std::make_unique<Process>(folder_.path(), hosts_.On(host, std::move(command))));
  }

  json Muster(std::vector<std::string> words) {
    words.insert(words.begin(), Binary("muster"));
    const Result result =
        RunCommand(folder_.path(), hosts_.On(kCoordinator, std::move(words)),
                   {{"MUSTER_COORDINATOR", address_}, {"MUSTER_TOKEN_FILE", folder_ / "token"}});
    last_error_ = result.err;
    return result.code == 0 ? json::parse(result.out, nullptr, false) : json(nullptr);
  }

  int64_t Iteration(const std::string& job) {
    const json status = Muster({"status", job, "--json"});
    return status.is_object() ? status["iteration"].get<int64_t>() : -1;
  }

  // Trains, cuts these hosts off for `length`, and looks at what it has cost.
  void CutAndCompare(const std::vector<int>& cut_off, absl::Duration length) {
    json spec = SmallSpec(2, 1'000'000);
    spec["resources"]["env"]["FAKE_STEP_MS"] = absl::StrCat(kStepMs);
    PutFileText(folder_ / "spec.json", spec.dump());
    const json submitted = Muster({"submit", folder_ / "spec.json", "--json"});
    ASSERT_TRUE(submitted.is_object()) << last_error_;
    const std::string job = submitted["job_id"];
    ASSERT_TRUE(Eventually([&] { return Iteration(job) >= 10; }));

    const int64_t before = Iteration(job);
    for (const int host : cut_off) ASSERT_TRUE(hosts_.Cut(host, true)) << hosts_.error();
    absl::SleepFor(length);  // the length of the outage is what is tested
    const json during = Muster({"status", job, "--json"});
    EXPECT_TRUE(during["exit_code"].is_null()) << during;
    for (const int host : cut_off) ASSERT_TRUE(hosts_.Cut(host, false)) << hosts_.error();

    // As many steps as the time allows went on; all of them arrive.
    const int64_t expected = before + absl::ToInt64Milliseconds(length) / kStepMs / 2;
    EXPECT_TRUE(Eventually([&] { return Iteration(job) > expected; })) << Iteration(job);
    ASSERT_TRUE(Eventually([&] {
      const json workers = Muster({"workers", "--json"});
      return workers.is_array() && std::all_of(workers.begin(), workers.end(),
                                               [](const json& w) { return w["state"] == "ALIVE"; });
    })) << Muster({"workers", "--json"});
    const json after = Muster({"status", job, "--json"});
    EXPECT_EQ(after["restarts"], 0);
    EXPECT_EQ(after["epoch"], 1);
    EXPECT_EQ(after["state"], "RUNNING") << after;
    EXPECT_TRUE(Muster({"cancel", job, "--json"}).is_object()) << last_error_;
    ASSERT_TRUE(Eventually([&] {
      const json status = Muster({"status", job, "--json"});
      return status.is_object() && !status["exit_code"].is_null();
    }));
    CheckLedger(job);
  }

  // Every step once and none missing.
  void CheckLedger(const std::string& job) {
    const Result metrics = RunCommand(
        folder_.path(), hosts_.On(kCoordinator, {Binary("muster"), "metrics", job, "--json"}),
        {{"MUSTER_COORDINATOR", address_}, {"MUSTER_TOKEN_FILE", folder_ / "token"}});
    EXPECT_EQ(metrics.code, 0) << metrics.err;
    int64_t last = 0;
    for (const json& record : JsonLines(metrics.out)) ASSERT_EQ(record["iteration"], ++last);
    EXPECT_GT(last, 10);
  }

  TempFolder folder_;
  NetworkNamespaces hosts_;
  std::string address_, last_error_;
  std::vector<std::unique_ptr<Process>> processes_;
};

TEST_F(PartitionTest, CoordinatorCutOffFor30SecondsCostsNothing) {
  CutAndCompare({kCoordinator}, absl::Seconds(30));
}

// It runs the rank that reports the steps, so only the other node's progress tells.
TEST_F(PartitionTest, FirstNodeCutOffFor30SecondsCostsNothing) {
  CutAndCompare({kFirst}, absl::Seconds(30));
}

TEST_F(PartitionTest, SecondNodeCutOffFor30SecondsCostsNothing) {
  CutAndCompare({kSecond}, absl::Seconds(30));
}

}  // namespace
}  // namespace muster
