// `muster watch` and the other commands that follow a job: on terminals of any width, in pipes, and
// while the coordinator is away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/cli/fake_coordinator.h"
#include "tests/cli/pty.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class WatchTest : public ::testing::Test {
 protected:
  std::vector<std::string> Command(std::vector<std::string> words) {
    words.insert(words.begin(), Binary("muster"));
    words.insert(words.end(), {"--coordinator", coordinator_.address()});
    return words;
  }
  TempFolder folder_;
  FakeCoordinator coordinator_;
};

TEST_F(WatchTest, ANarrowTerminalGetsLinesThatFit) {
  for (const int columns : {79, 60, 40, 20, 8}) {
    SCOPED_TRACE(columns);
    FakeCoordinator coordinator;
    coordinator.AddStep(500);
    Pty pty({Binary("muster"), "watch", "job-1", "--coordinator", coordinator.address()}, columns);
    ASSERT_TRUE(pty.Shows("job-1 RUNNING")) << pty.output();
    const size_t start = pty.seen();
    ASSERT_TRUE(pty.Shows(columns > 10 ? "500/1000" : "500/")) << pty.output();
    coordinator.AddStep(501);
    ASSERT_TRUE(pty.Shows(columns > 10 ? "501/1000" : "501")) << pty.output();
    EXPECT_LT(LongestLine(pty.output().substr(start)), columns);
    EXPECT_EQ(pty.output().find("loss 2.500000") != std::string::npos, columns >= 40);
    EXPECT_EQ(pty.output().find("[=====") != std::string::npos, columns >= 79);
  }
}

TEST_F(WatchTest, AResizedTerminalIsDrawnAnew) {
  coordinator_.AddStep(500);
  Pty pty(Command({"watch", "job-1"}), 100);
  ASSERT_TRUE(pty.Shows("tokens/s")) << pty.output();
  pty.Resize(40);
  // The wider line stands on two more rows now: they are cleared before it is drawn again.
  ASSERT_TRUE(pty.Shows("\x1b[2A\x1b[J")) << pty.output();
  const size_t start = pty.seen();
  ASSERT_TRUE(pty.Shows("500/1000")) << pty.output();
  coordinator_.AddStep(501);
  ASSERT_TRUE(pty.Shows("501/1000")) << pty.output();
  EXPECT_LT(LongestLine(pty.output().substr(start)), 40);
  pty.Resize(120);
  coordinator_.AddStep(502);
  ASSERT_TRUE(pty.Shows("502/1000  loss 2.500000  ETA")) << pty.output();
}

TEST_F(WatchTest, CtrlCLeavesTheJobAloneAndTheTerminalClean) {
  coordinator_.AddStep(1);
  Pty pty(Command({"watch", "job-1"}), 80);
  ASSERT_TRUE(pty.Shows("1/1000")) << pty.output();
  pty.Type("\x03");
  EXPECT_EQ(pty.Wait(), 130);
  EXPECT_THAT(pty.output(), HasSubstr("\njob-1 goes on: muster watch job-1"));
  EXPECT_EQ(pty.output().back(), '\n');
  EXPECT_THAT(pty.output(), Not(HasSubstr("\x1b[?25l"))) << "the cursor was never hidden";
}

TEST_F(WatchTest, APipeGetsPlainLinesAndTheJobsExitCode) {
  coordinator_.AddStep(100);
  Process watch(folder_.path(), Command({"watch", "job-1"}));
  ASSERT_TRUE(Eventually([&] { return !watch.Stdout().empty(); }));
  coordinator_.AddStep(200);
  coordinator_.EndJob(v1::JOB_STATE_FAILED, 1, "rank 1 was killed by signal 9");
  EXPECT_EQ(watch.Wait(), 1);
  EXPECT_THAT(watch.Stdout(), HasSubstr("\niteration 200/1000 | lm loss 2.500000"));
  EXPECT_THAT(watch.Stdout(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(watch.Stdout(), Not(HasSubstr("\r")));
  EXPECT_EQ(watch.Stderr(),
            "muster: job-1 failed: rank 1 was killed by signal 9; muster logs job-1 shows its "
            "output, muster restart job-1 submits it again\n");
}

TEST_F(WatchTest, ACoordinatorThatRestartsIsWaitedFor) {
  coordinator_.AddStep(1);
  Pty pty(Command({"watch", "job-1"}), 100);
  ASSERT_TRUE(pty.Shows("1/1000")) << pty.output();
  coordinator_.GoAway();
  ASSERT_TRUE(pty.Shows("coordinator away, training goes on; retrying\r\n")) << pty.output();
  coordinator_.AddStep(2);
  coordinator_.ComeBack();
  ASSERT_TRUE(pty.Shows("the coordinator is back after ")) << pty.output();
  ASSERT_TRUE(pty.Shows(" 2/1000")) << pty.output();
  coordinator_.GoAway();
  ASSERT_TRUE(pty.Shows("coordinator away")) << "it is said again";
  coordinator_.EndJob(v1::JOB_STATE_COMPLETED, 0, "");
  coordinator_.ComeBack();
  EXPECT_EQ(pty.Wait(), 0) << pty.output();
  EXPECT_THAT(pty.output(), HasSubstr("job-1 COMPLETED"));
}

TEST_F(WatchTest, CtrlCWhileTheCoordinatorIsAway) {
  coordinator_.AddStep(1);
  Pty pty(Command({"watch", "job-1"}), 100);
  ASSERT_TRUE(pty.Shows("1/1000")) << pty.output();
  coordinator_.GoAway();
  ASSERT_TRUE(pty.Shows("coordinator away")) << pty.output();
  pty.Type("\x03");
  EXPECT_EQ(pty.Wait(), 130);
  EXPECT_THAT(pty.output(), HasSubstr("job-1 goes on"));
}

TEST_F(WatchTest, AnOverdueWaitIsALine) {
  v1::JobStatus job;
  job.set_job_id("job-1");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_wait()->set_phase("step");
  job.mutable_wait()->mutable_elapsed()->set_seconds(45);
  job.mutable_wait()->mutable_limit()->set_seconds(30);
  job.mutable_wait()->set_overdue(true);
  job.mutable_wait()->set_missing("ranks 3-5 (node b, worker b/0-2): training");
  coordinator_.SetJob(job);
  Process watch(folder_.path(), Command({"watch", "job-1"}));
  ASSERT_TRUE(Eventually([&] { return watch.Stdout().find("overdue") != std::string::npos; }));
  EXPECT_THAT(watch.Stdout(), HasSubstr("overdue: step without progress for 45 s, expected within "
                                        "30 s; missing: ranks 3-5 (node b"));
}

TEST_F(WatchTest, LogsAndEventsFollowOverARestart) {
  coordinator_.AddLog(0, "one");
  coordinator_.AddEvent("queued", "first");
  Process logs(folder_.path(), Command({"logs", "job-1", "-f"}));
  Process events(folder_.path(), Command({"events", "job-1", "-f", "--json"}));
  ASSERT_TRUE(Eventually([&] { return logs.Stdout() == "[0] one\n" && !events.Stdout().empty(); }));
  coordinator_.GoAway();
  ASSERT_TRUE(Eventually([&] {
    return logs.Stderr() == "muster: coordinator away, training goes on; retrying\n" &&
           !events.Stderr().empty();
  }));
  coordinator_.AddLog(11, "two");
  coordinator_.AddLog(1, "three", 2);
  coordinator_.AddEvent("running", "second");
  coordinator_.ComeBack();
  coordinator_.EndJob(v1::JOB_STATE_COMPLETED, 0, "");
  EXPECT_EQ(logs.Wait(), 0);
  EXPECT_EQ(events.Wait(), 0);
  EXPECT_EQ(logs.Stdout(), "[0] one\n[11] two\n--- epoch 2\n[1]  three\n");
  EXPECT_THAT(events.Stdout(), HasSubstr("\"kind\":\"running\",\"text\":\"second\""));
}

TEST_F(WatchTest, JsonIsRecordsAndThenTheStatus) {
  coordinator_.AddStep(1);
  coordinator_.AddStep(2);
  coordinator_.EndJob(v1::JOB_STATE_COMPLETED, 0, "");
  const Result result = RunCommand(folder_.path(), Command({"watch", "job-1", "--json"}));
  EXPECT_EQ(result.code, 0);
  std::vector<nlohmann::json> lines;
  std::istringstream text(result.out);
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1]["iteration"], 2);
  EXPECT_EQ(lines[2]["state"], "COMPLETED");
}

TEST_F(WatchTest, TailShowsTheLastEntriesOnly) {
  for (int i = 0; i < 10; ++i) coordinator_.AddLog(i % 2, absl::StrCat("line ", i));
  EXPECT_EQ(RunCommand(folder_.path(), Command({"logs", "job-1", "--tail", "2"})).out,
            "[0] line 8\n[1] line 9\n");
  EXPECT_EQ(RunCommand(folder_.path(), Command({"logs", "job-1", "-n", "1", "--rank", "0"})).out,
            "line 8\n");
  EXPECT_EQ(RunCommand(folder_.path(), Command({"logs", "job-1", "--tail", "x"})).code, 2);
}

TEST_F(WatchTest, RanksAreColouredOnATerminalUnlessRefused) {
  coordinator_.AddLog(1, "hello");
  coordinator_.EndJob(v1::JOB_STATE_COMPLETED, 0, "");
  Pty coloured(Command({"logs", "job-1"}), 80);
  EXPECT_EQ(coloured.Wait(), 0);
  EXPECT_THAT(coloured.output(), HasSubstr("\x1b[32m[1]\x1b[0m hello"));
  Pty plain(Command({"logs", "job-1"}), 80, {{"NO_COLOR", "1"}});
  EXPECT_EQ(plain.Wait(), 0);
  EXPECT_EQ(plain.output(), "[1] hello\r\n");
}

}  // namespace
}  // namespace muster
