#include "cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cli/output.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::MetricsRecord Record(int64_t iteration, double loss = 2.5) {
  v1::MetricsRecord record;
  record.mutable_step()->set_iteration(iteration);
  record.mutable_step()->set_lm_loss(loss);
  record.mutable_step()->set_elapsed_ms(100);
  record.mutable_step()->set_tokens_per_s(12345);
  return record;
}

v1::JobStatus Job(v1::JobState state = v1::JOB_STATE_RUNNING) {
  v1::JobStatus job;
  job.set_job_id("job-1");
  job.set_state(state);
  job.set_train_iters(100);
  return job;
}

TEST(ProgressTest, PlainOutputIsALineAnInterval) {
  std::ostringstream out;
  Progress progress({.log_interval = 25}, &out);
  for (int i = 1; i <= 100; ++i) progress.OnRecord(Job(), Record(i), absl::Milliseconds(10 * i));
  const std::string text = out.str();
  for (const char* line : {"iteration 1/100", "iteration 25/100", "iteration 50/100",
                           "iteration 75/100", "iteration 100/100"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, HasSubstr("lm loss 2.500000"));
  EXPECT_THAT(text, HasSubstr("12.3k tokens/s"));
  EXPECT_THAT(text, HasSubstr("ETA 7.5 s"));
}

TEST(ProgressTest, ARecoverySaysWhyAndWhatIsDone) {
  std::ostringstream out;
  Progress progress({.log_interval = 25}, &out);
  v1::JobStatus job = Job(v1::JOB_STATE_RECOVERING);
  job.set_reason("rank 1 (worker a/1, node a): the trainer was killed by signal 9 (SIGKILL)");
  job.set_progress("ranks 0-1: launched");
  job.mutable_recovery()->set_what("rank 1 in place on a/1");
  progress.OnJob(job, absl::Seconds(1));
  EXPECT_EQ(out.str(),
            "job-1 RECOVERING: rank 1 (worker a/1, node a): the trainer was killed by signal 9 "
            "(SIGKILL); rank 1 in place on a/1\n");
}

TEST(ProgressTest, LastWordsOfADeadTrainerAreOfAJobThatFailed) {
  v1::JobStatus job = Job(v1::JOB_STATE_COMPLETED);
  job.mutable_cause()->add_last_log_lines("its last words");
  std::ostringstream completed, failed;
  Progress({}, &completed).OnEnd(job);
  job.set_state(v1::JOB_STATE_FAILED);
  Progress({}, &failed).OnEnd(job);
  EXPECT_THAT(completed.str(), Not(HasSubstr("last words")));
  EXPECT_THAT(failed.str(), HasSubstr("its last words"));
}

TEST(ProgressTest, SlowStepsAreTold) {
  std::ostringstream out;
  Progress progress({.log_interval = 1000}, &out);
  for (int i = 1; i <= 3; ++i) progress.OnRecord(Job(), Record(i), absl::Seconds(11 * i));
  EXPECT_THAT(out.str(), HasSubstr("iteration 2/100"));
  EXPECT_THAT(out.str(), HasSubstr("iteration 3/100"));
}

TEST(ProgressTest, TerminalBarIsRedrawnInOneLine) {
  std::ostringstream out;
  Progress progress({.terminal = true, .columns = 80}, &out);
  progress.OnRecord(Job(), Record(1), absl::Seconds(1));
  progress.OnRecord(Job(), Record(2), absl::Seconds(1));  // too soon to draw
  progress.OnRecord(Job(), Record(50), absl::Seconds(2));
  EXPECT_THAT(out.str(), Not(HasSubstr("\n")));
  EXPECT_THAT(out.str(), Not(HasSubstr(" 2/100")));
  EXPECT_THAT(out.str(), HasSubstr(" 50/100  loss 2.500000"));
}

TEST(ProgressTest, SideLossesStandBesideTheLossWhereThereIsRoom) {
  v1::MetricsRecord record = Record(50);
  record.mutable_step()->set_load_balancing_loss(1.25);
  record.mutable_step()->set_z_loss(0.5);
  std::ostringstream lines;
  Progress({}, &lines).OnRecord(Job(), record, absl::Seconds(1));
  EXPECT_THAT(lines.str(), HasSubstr("lm loss 2.500000 | learning rate 0.000e+00 | "
                                     "load_balancing_loss 1.2500 | z_loss 0.5000 | "));
  std::ostringstream wide, narrow;
  Progress({.terminal = true, .columns = 120}, &wide).OnRecord(Job(), record, absl::Seconds(1));
  EXPECT_THAT(wide.str(), HasSubstr("tokens/s  load_balancing_loss 1.2500  z_loss 0.5000"));
  Progress({.terminal = true, .columns = 80}, &narrow).OnRecord(Job(), record, absl::Seconds(1));
  EXPECT_THAT(narrow.str(), HasSubstr("==="));
  EXPECT_THAT(narrow.str(), Not(HasSubstr("load_balancing_loss")));
}

TEST(ProgressTest, ResultsAndTheEndAreLines) {
  std::ostringstream out;
  Progress progress({}, &out);
  v1::JobStatus job = Job();
  auto* evaluation = job.add_evaluations();
  evaluation->set_iteration(50);
  evaluation->set_split("valid");
  evaluation->set_lm_loss(1.25);
  evaluation->set_ppl(3.5);
  auto* checkpoint = job.add_checkpoints();
  checkpoint->set_iteration(60);
  checkpoint->set_path("/runs/a");
  progress.OnJob(job, absl::Seconds(1));
  progress.OnJob(job, absl::Seconds(2));
  EXPECT_EQ(out.str(),
            "job-1 RUNNING\n"
            "valid loss 1.250000 | ppl 3.5000 | at iteration 50\n"
            "checkpoint of iteration 60: /runs/a\n");
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_iteration(61);
  job.set_reason("rank 1: signal 9");
  job.mutable_cause()->add_last_log_lines("out of memory");
  progress.OnEnd(job);
  EXPECT_THAT(out.str(), HasSubstr("  out of memory\n"));
  EXPECT_THAT(out.str(), HasSubstr("job-1 FAILED at iteration 61: rank 1: signal 9\n"));
}

TEST(OutputTest, MetricsKeepEveryDigitAndTheFixedNames) {
  v1::MetricsRecord record = Record(7, 1.0 / 3.0);
  record.set_epoch(2);
  record.mutable_step()->set_grad_norm(0.1 + 0.2);
  const nlohmann::ordered_json json = ToJson(record);
  const nlohmann::json parsed = nlohmann::json::parse(json.dump());
  EXPECT_EQ(parsed["lm_loss"].get<double>(), 1.0 / 3.0);
  for (const char* name : {"num_zeros", "params_norm", "load_balancing_loss", "z_loss"})
    EXPECT_FALSE(parsed.contains(name)) << name;
  record.mutable_step()->set_num_zeros(0);
  record.mutable_step()->set_params_norm(1e308);
  EXPECT_EQ(ToJson(record)["num_zeros"], 0);
  EXPECT_EQ(ToJson(record)["params_norm"], 1e308);
  record.mutable_step()->set_load_balancing_loss(1.0 / 3.0);
  record.mutable_step()->set_seq_load_balancing_loss(1.5);
  record.mutable_step()->set_global_load_balancing_loss(2.5);
  record.mutable_step()->set_z_loss(0);
  EXPECT_EQ(ToJson(record)["load_balancing_loss"], 1.0 / 3.0);
  EXPECT_EQ(ToJson(record)["seq_load_balancing_loss"], 1.5);
  EXPECT_EQ(ToJson(record)["global_load_balancing_loss"], 2.5);
  EXPECT_EQ(ToJson(record)["z_loss"], 0);
  EXPECT_EQ(parsed["grad_norm"].get<double>(), 0.1 + 0.2);
  for (const char* name :
       {"iteration", "consumed_samples", "lm_loss", "grad_norm", "learning_rate", "loss_scale",
        "skipped", "elapsed_ms", "tokens_per_s", "tflops_per_device", "epoch"}) {
    EXPECT_TRUE(parsed.contains(name)) << name;
  }
}

TEST(OutputTest, StatusHasTheFixedNames) {
  v1::JobStatus job = Job();
  const nlohmann::ordered_json running = ToJson(job);
  for (const char* name : {"job_id", "name", "state", "epoch", "iteration", "train_iters",
                           "consumed_samples", "num_floating_point_operations_so_far", "last",
                           "evaluations", "checkpoints", "restarts", "exit_code", "reason"}) {
    EXPECT_TRUE(running.contains(name)) << name;
  }
  EXPECT_TRUE(running["exit_code"].is_null()) << "it has not ended";
  EXPECT_EQ(running["state"], "RUNNING");
  job.set_ended(true);
  job.set_exit_code(16);
  EXPECT_EQ(ToJson(job)["exit_code"], 16);
}

TEST(OutputTest, LossThatIsNoNumberIsNull) {
  v1::MetricsRecord record;
  record.mutable_step()->set_loss_text("nan");
  const nlohmann::ordered_json json = ToJson(record);
  EXPECT_TRUE(json["lm_loss"].is_null());
  EXPECT_EQ(json["loss_text"], "nan");
}

TEST(OutputTest, TableAlignsColumnsByCharacters) {
  EXPECT_EQ(FormatTable({"A", "B"}, {{"x", "1"}, {"äöü", "2"}}), "A    B\nx    1\näöü  2\n");
}

TEST(OutputTest, SecondsAndCountsReadWell) {
  EXPECT_EQ(FormatSeconds(3.14), "3.1 s");
  EXPECT_EQ(FormatSeconds(59.7), "1 min 0 s");
  EXPECT_EQ(FormatSeconds(3725), "1 h 2 min");
  EXPECT_EQ(FormatSeconds(-1), "?");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(12345), "12.3k");
  EXPECT_EQ(FormatCount(124e6), "124M");
}

}  // namespace
}  // namespace muster
