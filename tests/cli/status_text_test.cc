// What people see of jobs and clusters of thousands of workers.
#include "cli/status_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/describe_end.h"
#include "cli/output.h"
#include "cli/terminal.h"
#include "cli/workers_table.h"
#include "nlohmann/json.hpp"
#include "tests/integration/process.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kScreen = 24;

int NumLines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

int LongestLineOf(const std::string& text) {
  int longest = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    longest = std::max(longest, TextColumns(line));
  }
  return longest;
}

// All 4,096 ranks on 512 nodes are missing, and everything else that a job can have is there.
v1::JobStatus LargeJob() {
  v1::JobStatus job;
  job.set_job_id("job-7");
  job.set_name("large");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_world_size(4096);
  job.set_priority(3);
  job.set_epoch(2);
  job.set_iteration(5000);
  job.set_train_iters(100'000);
  job.set_progress(absl::StrCat("ranks 0-2047 (node ", std::string(900, 'n'), "): loading"));
  job.set_reason(absl::StrJoin(std::vector<std::string>(100, "a long reason"), ", "));
  job.set_next_evaluation(5100);
  job.mutable_submitted_at()->set_seconds(1'700'000'000);
  job.mutable_started_at()->set_seconds(1'700'000'060);
  job.mutable_last()->mutable_step()->set_lm_loss(2.5);
  std::vector<std::string> missing;
  for (int node = 0; node < 512; ++node) {
    missing.push_back(absl::StrFormat(
        "ranks %d-%d (node n%03d, worker n%03d/0-7): %s, last sign of life 12 s ago", 8 * node,
        8 * node + 7, node, node, node < 500 ? "loading" : "starting"));
  }
  v1::PhaseWait* wait = job.mutable_wait();
  wait->set_phase("load");
  wait->mutable_elapsed()->set_seconds(100);
  wait->mutable_limit()->set_seconds(65);
  wait->set_overdue(true);
  wait->set_missing(absl::StrJoin(missing, "; "));
  for (const char* phase : {"start", "forming", "load", "step", "evaluation", "save"}) {
    v1::PhaseLimit* limit = job.add_phase_limits();
    limit->set_phase(phase);
    limit->mutable_limit()->set_seconds(65);
    if (std::string(phase) == "save") continue;
    limit->mutable_longest()->set_seconds(20);
    limit->set_samples(12);
  }
  for (int i = 1; i <= 50; ++i) {
    v1::Evaluation* evaluation = job.add_evaluations();
    evaluation->set_iteration(100 * i);
    evaluation->set_split("valid");
    v1::Checkpoint* checkpoint = job.add_checkpoints();
    checkpoint->set_iteration(100 * i);
    checkpoint->set_path("/runs/large/iter");
  }
  return job;
}

TEST(StatusTextTest, AJobOf4096RanksFitsAScreen) {
  const std::string text = StatusText(LargeJob(), "", {.columns = 80});
  EXPECT_LE(NumLines(text), kScreen) << text;
  EXPECT_LE(LongestLineOf(text), 80) << text;
  EXPECT_THAT(text, HasSubstr("job-7 (large), 4096 ranks, priority 3"));
  EXPECT_THAT(text, HasSubstr("load: 1 min 40 s since the last progress, limit 1 min 5 s"));
  EXPECT_THAT(text, HasSubstr("OVERDUE"));
  EXPECT_THAT(text,
              HasSubstr("  ranks 0-7 (node n000, worker n000/0-7): loading, last sign of life "
                        "12 s ago\n"));
  EXPECT_THAT(text, HasSubstr("and 508 more groups: 496 loading, 12 starting (--verbose)"));
  EXPECT_THAT(text, HasSubstr("iteration 5000: /runs/large/iter"));
  EXPECT_THAT(text, HasSubstr("iter (49 before)\n"));
}

TEST(StatusTextTest, VerboseLeavesNothingOut) {
  const v1::JobStatus job = LargeJob();
  const std::string text = StatusText(job, "", {.verbose = true, .columns = 80});
  for (absl::string_view entry : absl::StrSplit(job.wait().missing(), "; ")) {
    EXPECT_THAT(text, HasSubstr(std::string(entry)));
  }
  EXPECT_THAT(text, HasSubstr("iteration 100 valid"));
  EXPECT_THAT(text, HasSubstr("save 1 min 5 s (none seen yet)"));
  EXPECT_THAT(text, Not(HasSubstr("--verbose")));
}

TEST(StatusTextTest, AFailedJobSaysTheFirstCauseWithItsLastLines) {
  v1::JobStatus job = LargeJob();
  job.clear_wait();
  job.clear_phase_limits();
  job.clear_progress();
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_ended(true);
  job.set_exit_code(1);
  job.set_workers_released(true);
  v1::FailureCause* cause = job.mutable_cause();
  cause->set_rank(17);
  cause->set_worker("n002/1");
  cause->set_node("n002");
  cause->set_signal(9);
  cause->set_iteration(4999);
  cause->set_text("trainer of rank 17 was killed by signal 9");
  for (int i = 0; i < 50; ++i) cause->add_last_log_lines(absl::StrCat("line ", i));
  cause->set_last_log_lines(47, std::string(4096, 'x'));
  const std::string text = StatusText(job, "", {.columns = 80});
  EXPECT_LE(NumLines(text), kScreen) << text;
  EXPECT_LE(LongestLineOf(text), 80) << text;
  EXPECT_THAT(text, HasSubstr("FAILED, exit code 1"));
  EXPECT_THAT(text, HasSubstr("first cause      trainer of rank 17 was killed by signal 9\n"));
  EXPECT_THAT(text, HasSubstr("rank 17, worker n002/1, node n002, after iteration 4999"));
  EXPECT_THAT(
      text, HasSubstr("its last lines   44 before these (--verbose)\n                 line 44\n"));
  EXPECT_THAT(text, HasSubstr(" line 49\n"));
  EXPECT_EQ(DescribeEnd(job),
            "job-7 failed: trainer of rank 17 was killed by signal 9 (worker n002/1 on node n002); "
            "muster logs job-7 --rank 17 shows its output, muster restart job-7 submits it again");
}

TEST(StatusTextTest, AQueuedJobSaysWhatItLacksAndThatTheDiskIsFull) {
  v1::JobStatus job;
  job.set_job_id("job-2");
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_reason("have 1 of 2 cpu workers; waiting for 1 more");
  const std::string text = StatusText(job, "the journal's disk is full", {.columns = 80});
  EXPECT_THAT(text, HasSubstr("reason           have 1 of 2 cpu workers; waiting for 1 more\n"));
  EXPECT_THAT(text, HasSubstr("storage          the journal's disk is full\n"));
}

TEST(StatusTextTest, ARecoverySaysWhatItDoesAndWhatThoseBeforeHaveCost) {
  v1::JobStatus job;
  job.set_job_id("job-2");
  job.set_state(v1::JOB_STATE_RECOVERING);
  job.set_restarts(2);
  job.set_steps_redone(1);
  job.set_recovery_seconds(1.5);
  job.add_spares("n3/0");
  job.mutable_recovery()->set_what("rank 3 in place on n1/0");
  job.mutable_recovery()->set_iteration(41);
  job.mutable_recovery()->mutable_elapsed()->set_seconds(2);
  v1::Straggler* slow = job.add_stragglers();
  slow->set_rank(1);
  slow->set_worker("n1/1");
  slow->set_cause("data");
  v1::HeldWorker* held = job.add_held_back();
  held->set_worker("n2/0");
  held->set_why("quarantined: copy bandwidth");
  const std::string text = StatusText(job, "", {.columns = 100});
  for (const char* line :
       {"recovery         rank 3 in place on n1/0, for 2.0 s, since iteration 41\n",
        "recovered        2 times, 1.5 s in all, 1 step redone\n", "spares           n3/0\n",
        "slow             rank 1 (worker n1/1): data\n",
        "held back        worker n2/0: quarantined: copy bandwidth\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_EQ(ToJson(job)["recovery"]["what"], "rank 3 in place on n1/0");
  EXPECT_TRUE(ToJson(v1::JobStatus())["recovery"].is_null());
}

TEST(StatusTextTest, JsonHasTheWaitAndTheLimits) {
  const nlohmann::ordered_json json = ToJson(LargeJob());
  EXPECT_EQ(json["priority"], 3);
  EXPECT_EQ(json["wait"]["phase"], "load");
  EXPECT_EQ(json["wait"]["elapsed_ms"], 100'000.0);
  EXPECT_EQ(json["wait"]["limit_ms"], 65'000.0);
  EXPECT_EQ(json["wait"]["overdue"], true);
  EXPECT_EQ(json["wait"]["missing"], LargeJob().wait().missing());
  ASSERT_EQ(json["phase_limits"].size(), 6u);
  EXPECT_EQ(json["phase_limits"][3]["phase"], "step");
  EXPECT_EQ(json["phase_limits"][3]["longest_ms"], 20'000.0);
  EXPECT_TRUE(json["phase_limits"][5]["longest_ms"].is_null());
  EXPECT_TRUE(ToJson(v1::JobStatus())["wait"].is_null());
}

// Of all objects inside, too.
void CollectNames(const nlohmann::ordered_json& json, std::set<std::string>* names) {
  if (json.is_object()) {
    for (const auto& [name, value] : json.items()) {
      names->insert(name);
      if (name != "timers_ms") CollectNames(value, names);
    }
  } else if (json.is_array()) {
    for (const auto& value : json) CollectNames(value, names);
  }
}

TEST(StatusTextTest, EveryNameOfJsonIsDocumented) {
  v1::JobStatus job = LargeJob();
  v1::FailureCause* cause = job.mutable_cause();
  cause->set_rank(1);
  cause->set_exit_code(1);
  cause->set_signal(9);
  cause->mutable_time();
  job.mutable_submitted_at();
  job.mutable_started_at();
  job.mutable_ended_at();
  cause->set_kind("hang");
  job.mutable_recovery();
  job.add_stragglers();
  job.add_held_back();
  job.mutable_phase_limits(3)->mutable_p99();
  v1::StepReport* step = job.mutable_last()->mutable_step();
  step->set_loss_text("nan");
  (*step->mutable_timers_ms())["forward"] = 1;
  v1::Event event;
  event.set_rank(1);
  event.set_worker("a");
  std::set<std::string> names;
  for (const auto& json :
       {ToJson(job), ToJson(event), ToJson(v1::LogLine()), ToJson(v1::WorkerStatus())}) {
    CollectNames(json, &names);
  }
  EXPECT_GT(names.size(), 60u);
  const std::string page = FileText(absl::StrCat(MUSTER_SOURCE_DIR, "/docs/cli.md"));
  for (const std::string& name : names) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("`", name, "`")));
  }
}

TEST(StatusTextTest, GroupsOfThoseMissingAreCounted) {
  EXPECT_THAT(MissingLines("rank 1 (node a): loading, x; rank 2 (node b): loading, y", 3),
              ElementsAre("rank 1 (node a): loading, x", "rank 2 (node b): loading, y"));
  // As the coordinator says it of very many.
  const std::string missing =
      "ranks 0-7 (node a): loading, x; ranks 8-15 (node b): loading, x; ranks 16-23 (node c): "
      "starting, x; ranks 24-31 (node d): loading, x; and 4064 more ranks (32-4095)";
  EXPECT_THAT(MissingLines(missing, 5).size(), 5u);
  EXPECT_THAT(MissingLines(missing, 4),
              ElementsAre("ranks 0-7 (node a): loading, x", "ranks 8-15 (node b): loading, x",
                          "and 2 more groups: 1 loading, 1 starting (--verbose)",
                          "and 4064 more ranks (32-4095)"));
}

TEST(StatusTextTest, WrapsBetweenWords) {
  EXPECT_THAT(Wrapped("one two three", 8), ElementsAre("one two", "three"));
  EXPECT_THAT(Wrapped("unbreakable", 4), ElementsAre("unbreakable"));
  EXPECT_THAT(Wrapped("", 4), ElementsAre(""));
}

TEST(TerminalTest, ShortenedCountsCharacters) {
  EXPECT_EQ(Shortened("abcdef", 6), "abcdef");
  EXPECT_EQ(Shortened("abcdefg", 6), "abc...");
  EXPECT_EQ(Shortened("äöüäöü", 6), "äöüäöü");
  EXPECT_EQ(Shortened("äöüäöüä", 6), "äöü...");
  EXPECT_EQ(Shortened("abcdef", 2), "..");
}

v1::ListWorkersResponse ManyWorkers() {
  v1::ListWorkersResponse workers;
  for (int i = 0; i < 4096; ++i) {
    v1::WorkerStatus* worker = workers.add_workers();
    const std::string node = absl::StrFormat("n%03d", i / 8);
    worker->mutable_description()->set_name(absl::StrCat(node, "/", i % 8));
    worker->set_node(node);
    worker->set_state(i / 8 == 17 ? v1::WORKER_STATE_SUSPECT : v1::WORKER_STATE_ALIVE);
    worker->set_draining(i / 8 == 99);
    if (i >= 80) {
      worker->set_job_id("job-7");
      worker->set_rank(i - 80);
      worker->set_phase("training");
    }
  }
  return workers;
}

TEST(WorkersTableTest, ThousandsAreCounted) {
  const std::string text = WorkersSummary(ManyWorkers());
  EXPECT_EQ(
      text,
      "4096 workers on 512 nodes; --all lists every one\n\n"
      "STATE            WORK            WORKERS  HEARD  NODES\n"
      "ALIVE, draining  job-7 training  8        0.0 s  n099\n"
      "SUSPECT          job-7 training  8        0.0 s  n017\n"
      "ALIVE            idle            80       0.0 s  n[000-009]\n"
      "ALIVE            job-7 training  4000     0.0 s  n[010-016], n[018-098], n[100-511]\n");
  EXPECT_EQ(NumLines(WorkersTable(ManyWorkers())), 4097);
}

TEST(WorkersTableTest, NamesBecomeRanges) {
  struct Row {
    std::vector<std::string> names;
    const char* compressed;
  };
  const Row rows[] = {
      {{}, ""},
      {{"a"}, "a"},
      {{"n2", "n1", "n3", "n10"}, "n[1-3], n10"},
      {{"n099", "n100", "n101"}, "n[099-101]"},
      {{"b1", "a1", "a2", "gpu"}, "a[1-2], b1, gpu"},
      {{"7", "8"}, "[7-8]"},
      {{"n0", "n1"}, "n[0-1]"},
      {{"x1", "x3", "x5", "x7", "x9"}, "x1, x3, x5 and 2 more"},
  };
  for (const Row& row : rows) EXPECT_EQ(CompressNames(row.names, 3), row.compressed);
}

}  // namespace
}  // namespace muster
