// A network that is cut while a job trains or recovers: that is known in time, and the job goes on
// when the network is back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/chaos/fault_case.h"
#include "tests/integration/network_namespaces.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr int kCoordinator = 0, kFirst = 1, kSecond = 2;  // hosts

class RecoveryPartitionTest : public ::testing::Test {
 protected:
  RecoveryPartitionTest() : hosts_(folder_.path(), 3) {}

  void SetUp() override {
    if (!hosts_.ok()) GTEST_SKIP() << hosts_.error();
  }

  void StartAll(const std::vector<std::string>& coordinator_options = {}) {
    PutFileText(folder_ / "token", "a-token-of-this-test\n");
    ASSERT_EQ(chmod((folder_ / "token").c_str(), 0600), 0);
    address_ = hosts_.address(kCoordinator) + ":7700";
    std::vector<std::string> coordinator = {Binary("muster-coordinator"),
                                            "--listen",
                                            address_,
                                            "--http",
                                            "127.0.0.1:0",
                                            "--state-dir",
                                            folder_ / "coordinator",
                                            "--token-file",
                                            folder_ / "token"};
    coordinator.insert(coordinator.end(), coordinator_options.begin(), coordinator_options.end());
    Start(kCoordinator, coordinator);
    for (const int host : {kFirst, kSecond}) {
      const std::string name = host == kFirst ? "first" : "second";
      Start(host, {Binary("muster-worker"), "--coordinator", address_, "--device", "cpu", "--name",
                   name, "--advertise", hosts_.address(host), "--state-dir", folder_ / name,
                   "--plugin-dir", PLUGIN_DIR, "--token-file", folder_ / "token"});
    }
    ASSERT_TRUE(Eventually([&] {
      const json workers = Muster({"workers", "--json"});
      return workers.is_array() && workers.size() == 2 && workers[0]["state"] == "ALIVE" &&
             workers[1]["state"] == "ALIVE";
    })) << processes_[0]->Stderr();
  }

  void Start(int host, std::vector<std::string> command) {
    processes_.push_back(std::make_unique<Process>(
        folder_.path(), hosts_.On(host, std::move(command)),
        std::map<std::string, std::string>{{"MUSTER_TEST_FOLDER", folder_.path()}}));
  }
  Result Run(std::vector<std::string> words) {
    words.insert(words.begin(), Binary("muster"));
    return RunCommand(folder_.path(), hosts_.On(kCoordinator, std::move(words)),
                      {{"MUSTER_COORDINATOR", address_}, {"MUSTER_TOKEN_FILE", folder_ / "token"}});
  }
  json Muster(std::vector<std::string> words) {
    const Result result = Run(std::move(words));
    return result.code == 0 ? json::parse(result.out, nullptr, false) : json(nullptr);
  }
  // At a pace at which all that a test does comes in time.
  std::string Submit(json spec) {
    MakeUnruly(folder_.path(), &spec);
    PutFileText(folder_ / "spec.json", spec.dump());
    const json submitted = Muster({"submit", folder_ / "spec.json", "--json"});
    return submitted.is_object() ? submitted["job_id"].get<std::string>() : "";
  }
  bool WaitForIteration(const std::string& job, int64_t iteration) {
    return Eventually([&] {
      const json status = Muster({"status", job, "--json"});
      return status.is_object() && status["iteration"].get<int64_t>() >= iteration;
    });
  }
  // The numbers of each step, once it has completed.
  std::vector<std::string> NumbersAtTheEnd(const std::string& job) {
    json status;
    EXPECT_TRUE(Eventually(
        [&] {
          status = Muster({"status", job, "--json"});
          return status.is_object() && !status["exit_code"].is_null();
        },
        absl::Seconds(90)))
        << Run({"events", job}).out << processes_[0]->Stderr();
    EXPECT_EQ(status["state"], "COMPLETED") << status << Run({"events", job}).out;
    std::vector<std::string> numbers;
    for (const json& record : JsonLines(Run({"metrics", job, "--json"}).out)) {
      numbers.push_back(json{record["iteration"], record["consumed_samples"], record["lm_loss"],
                             record["grad_norm"]}
                            .dump());
    }
    return numbers;
  }
  // The small job's.
  std::vector<std::string> Unbroken() {
    std::vector<std::string> numbers = NumbersAtTheEnd(Submit(spec_));
    EXPECT_EQ(numbers.size(), 100u);
    SetPace(folder_.path(), kBriskPace);
    return numbers;
  }
  json Status(const std::string& job) { return Muster({"status", job, "--json"}); }
  std::vector<json> Events(const std::string& job, const std::string& kind) {
    std::vector<json> events = JsonLines(Run({"events", job, "--json"}).out);
    std::erase_if(events, [&](const json& event) { return event["kind"] != kind; });
    return events;
  }
  bool WaitForEvent(const std::string& job, const std::string& kind) {
    return Eventually([&] { return !Events(job, kind).empty(); });
  }
  std::vector<pid_t> Trainers() {
    std::vector<pid_t> pids = ProcessesNaming("MUSTER_TEST_FOLDER=" + folder_.path());
    std::erase_if(pids, [](pid_t pid) {
      return FileText(absl::StrCat("/proc/", pid, "/cmdline")).rfind(Binary("muster-trainer"), 0) !=
             0;
    });
    return pids;
  }

  const json spec_ = ChaosSpec(ChaosLayouts()[0], 100);
  TempFolder folder_;
  NetworkNamespaces hosts_;
  std::string address_;
  std::vector<std::unique_ptr<Process>> processes_;
};

TEST_F(RecoveryPartitionTest, SurvivorsNodeIsCutOffWhileTheOtherIsRestarted) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const std::vector<std::string> unbroken = Unbroken();
  for (const int host : {kFirst, kSecond}) {
    const std::string job = Submit(spec_);
    ASSERT_TRUE(WaitForIteration(job, 20)) << Run({"events", job}).out;
    const std::vector<pid_t> trainers = Trainers();
    ASSERT_EQ(trainers.size(), 2u);
    kill(trainers.back(), SIGKILL);
    ASSERT_TRUE(hosts_.Cut(host, true)) << hosts_.error();
    absl::SleepFor(absl::Seconds(3));  // twice the heartbeat's limit
    ASSERT_TRUE(hosts_.Cut(host, false)) << hosts_.error();
    ExpectSameNumbers(NumbersAtTheEnd(job), unbroken);
  }
}

// No packet says that a node is away: it is known by what is not heard.
TEST_F(RecoveryPartitionTest, ASilentPartitionIsKnownInTime) {
  ASSERT_NO_FATAL_FAILURE(StartAll());
  const std::vector<std::string> unbroken = Unbroken();
  const std::string job = Submit(spec_);
  ASSERT_TRUE(WaitForIteration(job, 20)) << Run({"events", job}).out;
  const absl::Time before = absl::Now();
  ASSERT_TRUE(hosts_.Cut(kSecond, true)) << hosts_.error();
  const absl::Time after = absl::Now();
  ASSERT_TRUE(WaitForEvent(job, "node_lost")) << Run({"events", job}).out;
  ASSERT_TRUE(hosts_.Cut(kSecond, false)) << hosts_.error();
  const absl::Duration limit = LimitOfSteps(Status(job)).limit;
  const json suspect = Events(job, "suspect").front(), lost = Events(job, "node_lost").front();
  EXPECT_THAT(suspect["text"].get<std::string>(), ::testing::HasSubstr("second"));
  // A heartbeat each 500 ms; suspect after 1.3 s of silence, lost after 1.5 s when the job has made
  // no progress for its step's limit. A second is for a machine that is busy.
  const absl::Duration slack = absl::Seconds(1);
  EXPECT_GE(TimeOf(suspect) - before, absl::Milliseconds(700)) << suspect;
  EXPECT_LE(TimeOf(suspect) - after, absl::Milliseconds(1500) + slack) << suspect;
  EXPECT_LE(TimeOf(lost) - after, std::max(absl::Milliseconds(1500), limit) + slack) << lost;
  ExpectSameNumbers(NumbersAtTheEnd(job), unbroken);
}

// The coordinator is patient here, so that what is cut off for a while is not given up.
TEST_F(RecoveryPartitionTest, HealedInTimeNothingIsRestarted) {
  ASSERT_NO_FATAL_FAILURE(StartAll({"--heartbeat-timeout-ms", "8000"}));
  const std::vector<std::string> unbroken = Unbroken();
  const std::string job = Submit(spec_);
  for (const int host : {kSecond, kCoordinator, kFirst}) {
    const json status = Status(job);
    ASSERT_TRUE(WaitForIteration(job, status["iteration"].get<int64_t>() + 10));
    ASSERT_TRUE(hosts_.Cut(host, true)) << hosts_.error();
    absl::SleepFor(absl::Milliseconds(1500));  // longer than steps may last
    ASSERT_TRUE(hosts_.Cut(host, false)) << hosts_.error();
  }
  ExpectSameNumbers(NumbersAtTheEnd(job), unbroken);
  EXPECT_EQ(Status(job)["restarts"], 0) << Run({"events", job}).out;
  EXPECT_EQ(Status(job)["epoch"], 1);
}

}  // namespace
}  // namespace muster
