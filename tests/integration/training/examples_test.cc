// The examples that spread a model in the newer ways, as a user runs them: ctrl-C, go on, and a
// trainer that is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;

class ExampleJobTest : public ::testing::TestWithParam<const char*> {
 protected:
  // `muster local` of the example, without an end, that saves to and loads from one folder.
  Process Start(const std::string& run) {
    return Process(folder_.path(),
                   {Binary("muster"), "local",
                    absl::StrCat(MUSTER_SOURCE_DIR "/examples/", GetParam(), ".json"),
                    "--state-dir", folder_ / "state", "--metrics", folder_ / run, "--set",
                    "training.train_iters=1000000", "--set", "training.num_threads=1", "--set",
                    absl::StrCat("checkpoint.save=", folder_ / "checkpoints"), "--set",
                    absl::StrCat("checkpoint.load=", folder_ / "checkpoints"), "--set",
                    "checkpoint.save_interval=1000000"},
                   {{"MUSTER_TEST_FOLDER", folder_.path()}});
  }
  std::vector<json> Records(const std::string& run) { return JsonLines(FileText(folder_ / run)); }
  bool WaitForSteps(const std::string& run, size_t steps) {
    return Eventually([&] { return Records(run).size() >= steps; }, absl::Seconds(120));
  }
  std::vector<pid_t> Trainers() {
    std::vector<pid_t> pids = ProcessesNaming("MUSTER_TEST_FOLDER=" + folder_.path());
    std::erase_if(pids, [](pid_t pid) {
      return FileText(absl::StrCat("/proc/", pid, "/cmdline")).find("muster-trainer") ==
             std::string::npos;
    });
    return pids;
  }
  bool NothingIsLeft() {
    return Eventually([&] { return ProcessesNaming(folder_.path()).empty(); }, absl::Seconds(20));
  }

  const TempFolder folder_;
};

TEST_P(ExampleJobTest, InterruptedItGoesOnAndSurvivesAKilledTrainer) {
  int64_t stopped_at = 0;
  {
    Process job = Start("first");
    ASSERT_TRUE(WaitForSteps("first", 2)) << job.Stderr() << job.Stdout();
    job.Signal(SIGINT);
    EXPECT_EQ(job.Wait(), 130) << job.Stderr() << job.Stdout();
    stopped_at = Records("first").back()["iteration"];
    EXPECT_EQ(FileText(folder_ / "checkpoints/latest_checkpointed_iteration.txt"),
              absl::StrCat(stopped_at));
    EXPECT_TRUE(NothingIsLeft());
  }
  Process job = Start("second");
  ASSERT_TRUE(WaitForSteps("second", 2)) << job.Stderr() << job.Stdout();
  EXPECT_EQ(Records("second").front()["iteration"], stopped_at + 1);
  const std::vector<pid_t> trainers = Trainers();
  ASSERT_GE(trainers.size(), 2u);
  const int64_t before = Records("second").back()["iteration"];
  kill(trainers.back(), SIGKILL);
  EXPECT_TRUE(
      Eventually([&] { return Records("second").back()["iteration"].get<int64_t>() >= before + 2; },
                 absl::Seconds(60)))
      << job.Stderr() << job.Stdout();
  job.Signal(SIGINT);
  EXPECT_EQ(job.Wait(), 130) << job.Stderr() << job.Stdout();
  EXPECT_THAT(job.Stdout() + job.Stderr(),
              ContainsRegex("rank [0-9] .*the trainer was killed by signal 9 .SIGKILL"));
  EXPECT_TRUE(NothingIsLeft());
}

INSTANTIATE_TEST_SUITE_P(Jobs, ExampleJobTest,
                         ::testing::Values("moe-ep2", "long-context-cp2", "fsdp"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace muster
