#include "coordinator/server/agent_convert.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

// The body of a batch with this one report, of job, epoch 3, rank 5.
ReportBody BodyOf(const v1::TrainerReport& report) {
  v1::ReportBatch batch;
  *batch.add_reports() = report;
  batch.mutable_reports(0)->set_epoch(3);
  const absl::StatusOr<ReportBatch> got = FromProto(batch, /*stream=*/1);
  EXPECT_TRUE(got.ok()) << got.status();
  return got->reports.at(0).body;
}

TEST(AgentConvertTest, AProbeReportHasAReplyOnlyWhereTheTrainerGaveOne) {
  v1::TrainerReport report;
  report.mutable_probe()->set_request(8);
  report.mutable_probe()->set_running(true);
  report.mutable_probe()->set_process_state("T");
  report.mutable_probe()->set_cpu_ms(250);
  ProbeReport silent = std::get<ProbeReport>(BodyOf(report));
  EXPECT_EQ(silent.request, 8);
  EXPECT_TRUE(silent.running);
  EXPECT_EQ(silent.process_state, "T");
  EXPECT_EQ(silent.cpu_ms, 250);
  EXPECT_FALSE(silent.reply.has_value());

  v1::ProbeReply* reply = report.mutable_probe()->mutable_reply();
  reply->set_iteration(99);
  reply->set_phase("training");
  reply->set_thread_cpu_ms(1.5);
  v1::OpArrival* op = reply->add_ops();
  op->set_group("dp");
  op->add_ranks(0);
  op->add_ranks(2);
  op->set_sequence(7);
  op->set_operation("all_reduce");
  op->set_age_ms(12.5);
  const ProbeReplyMessage expected{.epoch = 3,
                                   .request = 8,
                                   .iteration = 99,
                                   .phase = "training",
                                   .thread_cpu_ms = 1.5,
                                   .ops = {{"dp", {0, 2}, 7, "all_reduce", false, 12.5}}};
  EXPECT_EQ(std::get<ProbeReport>(BodyOf(report)).reply, expected);
}

TEST(AgentConvertTest, WhatATrainerSaysOfARecovery) {
  v1::TrainerReport report;
  report.mutable_restored()->set_iteration(100);
  report.mutable_restored()->set_source("live");
  report.mutable_restored()->set_text("rank 1 from rank 0");
  report.mutable_restored()->set_form_ms(12.5);
  report.mutable_restored()->set_state_ms(80);
  report.mutable_restored()->set_bytes(7);
  const auto restored = std::get<RestoredMessage>(BodyOf(report));
  EXPECT_EQ(restored.epoch, 3);
  EXPECT_EQ(restored.iteration, 100);
  EXPECT_EQ(restored.source, "live");
  EXPECT_EQ(restored.text, "rank 1 from rank 0");
  EXPECT_EQ(restored.form_ms, 12.5);
  EXPECT_EQ(restored.state_ms, 80);
  EXPECT_EQ(restored.bytes, 7);

  report.mutable_rank_times()->set_steps(40);
  report.mutable_rank_times()->set_compute_ms(9);
  report.mutable_rank_times()->set_communication_wait_ms(2);
  report.mutable_rank_times()->set_data_ms(1);
  const auto times = std::get<RankTimesMessage>(BodyOf(report));
  EXPECT_EQ(times.steps, 40);
  EXPECT_EQ(times.compute_ms, 9);
  EXPECT_EQ(times.communication_wait_ms, 2);
  EXPECT_EQ(times.data_ms, 1);

  report.mutable_examine()->set_iteration(7);
  report.mutable_examine()->set_json("{}");
  EXPECT_EQ(std::get<ExamineMessage>(BodyOf(report)).json, "{}");
  report.mutable_exited()->set_signal(9);
  report.mutable_exited()->set_oom_killed(true);
  EXPECT_TRUE(std::get<ExitedReport>(BodyOf(report)).oom_killed);
  report.mutable_device_check()->set_fingerprint("f0");
  EXPECT_EQ(std::get<DeviceCheck>(BodyOf(report)).fingerprint, "f0");
}

TEST(AgentConvertTest, ARegistrationHasAllChecksOrNone) {
  v1::RegisterRequest request;
  for (const char* name : {"w0", "w1"}) {
    v1::WorkerDescription* worker = request.add_workers();
    worker->set_name(name);
    worker->set_kind(v1::DEVICE_KIND_CPU);
  }
  const auto older = FromProto(request, "host");
  ASSERT_TRUE(older.ok());
  EXPECT_TRUE(older->checks.empty()) << "an older agent";
  request.mutable_workers(1)->mutable_check()->set_kind("CPU");
  EXPECT_TRUE(FromProto(request, "host")->checks.empty()) << "whose is it?";
  request.mutable_workers(0)->mutable_check()->set_error("none");
  request.mutable_workers(0)->mutable_check()->set_not_run(true);
  const auto agent = FromProto(request, "host");
  ASSERT_EQ(agent->checks.size(), 2u);
  EXPECT_TRUE(agent->checks[0].not_run);
  EXPECT_EQ(agent->checks[1].kind, "CPU");
}

TEST(AgentConvertTest, ALaunchTellsAllThatARecoveryNeeds) {
  LaunchMessage launch{.job_id = "job",
                       .epoch = 2,
                       .spec_json = "{}",
                       .world_size = 4,
                       .directives_through = 6,
                       .num_helpers = 1,
                       .ledger_through = 41,
                       .examine_json = "{}"};
  launch.assignments = {{.worker = "w0", .rank = -1}, {.worker = "w1", .rank = 4, .buddy = 0}};
  const v1::Launch proto = ToProto(AgentMessage(launch)).launch();
  EXPECT_EQ(proto.num_helpers(), 1);
  EXPECT_EQ(proto.ledger_through(), 41);
  EXPECT_EQ(proto.examine_json(), "{}");
  EXPECT_EQ(proto.assignments(0).rank(), -1);
  EXPECT_EQ(proto.assignments(0).buddy(), -1);
  EXPECT_EQ(proto.assignments(1).rank(), 4);
  EXPECT_TRUE(proto.assignments(1).has_buddy());
  EXPECT_EQ(proto.assignments(1).buddy(), 0);
  EXPECT_EQ(ToProto(AgentMessage(ForgetJobMessage{"job"})).forget_job().job_id(), "job");
  const Directive leave{4, Directive::Kind::kCheckpointAndExit, "bad", std::nullopt, 12, 16};
  const v1::Directive directive =
      ToProto(AgentMessage(DirectiveBroadcast{"job", 2, leave})).directive();
  EXPECT_EQ(directive.kind(), v1::DIRECTIVE_KIND_CHECKPOINT_AND_EXIT);
  EXPECT_EQ(directive.iteration(), 12);
  EXPECT_EQ(directive.exit_code(), 16);
  const v1::Probe probe = ToProto(AgentMessage(ProbeOrder{"job", 2, 7})).probe();
  EXPECT_EQ(probe.job_id(), "job");
  EXPECT_EQ(probe.epoch(), 2);
  EXPECT_EQ(probe.request(), 7);
}

}  // namespace
}  // namespace muster
