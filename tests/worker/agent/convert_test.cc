#include "worker/agent/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/convert.h"
#include "worker/agent/report_codec.h"

namespace muster {
namespace {

v1::TrainerReport Convert(decltype(NodeReport::report) report) {
  NodeReportBatch batch{.sequence = 7};
  batch.reports.push_back({.assignment = {"w0", "job", 3}, .rank = 5, .report = std::move(report)});
  const v1::ReportBatch out = ToProto(batch);
  EXPECT_EQ(out.sequence(), 7);
  EXPECT_EQ(out.reports(0).worker(), "w0");
  EXPECT_EQ(out.reports(0).job_id(), "job");
  EXPECT_EQ(out.reports(0).epoch(), 3);
  EXPECT_EQ(out.reports(0).rank(), 5);
  return out.reports(0);
}

TEST(ConvertTest, LogLinesBecomeValidUtf8) {
  struct Row {
    const char* name;
    std::string line, expected;
  };
  const Row rows[] = {
      {"plain", "step 1", "step 1"},
      {"two, three and four bytes", "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80",
       "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"},
      {"latin-1", "caf\xe9!", "caf?!"},
      {"cut at the end", "a\xe2\x82", "a??"},
      {"overlong", "\xc0\xaf", "??"},
      {"overlong, three bytes", "\xe0\x80\xaf", "???"},
      {"surrogate", "\xed\xa0\x80", "???"},
      {"above the last code point", "\xf4\x90\x80\x80", "????"},
      {"stray continuation", "\x80x", "?x"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(Convert(NodeLogLines{{row.line}}).log().lines(0), row.expected);
  }
}

TEST(ConvertTest, HowATrainerEndedIsOneOfThree) {
  EXPECT_EQ(Convert(TrainerExited{.exit_code = 3}).exited().exit_code(), 3);
  EXPECT_EQ(Convert(TrainerExited{.exit_code = -1, .signal = 9}).exited().signal(), 9);
  EXPECT_EQ(Convert(TrainerExited{.launch_error = "no"}).exited().launch_error(), "no");
  EXPECT_EQ(Convert(TrainerExited{}).exited().how_case(), v1::ExitedReport::kExitCode);
}

TEST(ConvertTest, AKillForWantOfMemoryIsSaid) {
  EXPECT_TRUE(Convert(TrainerExited{.signal = 9, .oom_killed = true}).exited().oom_killed());
  EXPECT_FALSE(Convert(TrainerExited{.signal = 9}).exited().oom_killed());
}

// What is spilled to files while the coordinator is away comes back as it was.
TEST(ConvertTest, ReportsOfARecoverySurviveTheirCodec) {
  const ProbeReplyMessage reply{.epoch = 3,
                                .request = 8,
                                .iteration = 99,
                                .phase = "training",
                                .thread_cpu_ms = 1.5,
                                .ops = {{"dp", {0, 2}, 7, "all_reduce", false, 12.5}}};
  const decltype(NodeReport::report) reports[] = {
      TrainerExited{.exit_code = -1, .signal = 9, .pid = 5, .oom_killed = true},
      RestoredMessage{3, 100, "live", "rank 1 from rank 0", 12.5, 80.25, 1 << 20},
      RankTimesMessage{3, 100, 40, 9.5, 1.25, 0.125},
      ExamineMessage{3, 100, "{}"},
      TrainerProbed{8, true, "R", 250.5, reply},
      TrainerProbed{8, false, "", 0, std::nullopt},
      DeviceCheck{"cuda:1", "GPU", "GPU-1", "f0", 3.5, 100, "", false},
      DeviceCheck{.error = "no program", .not_run = true},
  };
  for (const auto& report : reports) {
    const NodeReport sent{.assignment = {"w0", "job", 3}, .rank = 5, .report = report};
    const std::string bytes = EncodeReport(sent);
    const std::optional<NodeReport> got = DecodeReport(bytes);
    ASSERT_TRUE(got.has_value());
    EXPECT_EQ(got->report.index(), report.index());
    EXPECT_EQ(EncodeReport(*got), bytes);
  }
  const auto probed = DecodeReport(EncodeReport(
      {.assignment = {"w0", "job", 3}, .report = TrainerProbed{8, true, "R", 250.5, reply}}));
  EXPECT_EQ(std::get<TrainerProbed>(probed->report).reply, reply);
  EXPECT_EQ(std::get<TrainerProbed>(probed->report).cpu_ms, 250.5);
}

TEST(ConvertTest, StepKeepsEveryDigitAndWhatIsAbsent) {
  const v1::StepReport step = Convert(StepMessage{.iteration = 9,
                                                  .lm_loss = 1.0 / 3.0,
                                                  .num_zeros = 0,
                                                  .params_norm = 2.0 / 3.0,
                                                  .load_balancing_loss = 4.0 / 3.0,
                                                  .z_loss = 0,
                                                  .timers_ms = {{"optimizer", 1.5}}})
                                  .step();
  EXPECT_EQ(step.lm_loss(), 1.0 / 3.0);
  EXPECT_FALSE(step.has_grad_norm());
  EXPECT_TRUE(step.has_num_zeros());
  EXPECT_EQ(step.params_norm(), 2.0 / 3.0);
  EXPECT_EQ(step.load_balancing_loss(), 4.0 / 3.0);
  EXPECT_TRUE(step.has_z_loss());
  EXPECT_FALSE(step.has_seq_load_balancing_loss());
  EXPECT_FALSE(step.has_global_load_balancing_loss());
  EXPECT_EQ(step.timers_ms().at("optimizer"), 1.5);
  const v1::StepReport bad = Convert(StepMessage{.loss_text = "nan"}).step();
  EXPECT_FALSE(bad.has_lm_loss());
  EXPECT_FALSE(bad.has_num_zeros());
  EXPECT_FALSE(bad.has_params_norm());
  EXPECT_EQ(bad.loss_text(), "nan");
}

TEST(ConvertTest, OrdersKeepTheirFields) {
  v1::ConnectResponse response;
  v1::Launch* launch = response.mutable_launch();
  launch->set_job_id("job");
  launch->set_epoch(2);
  launch->set_spec_json("{}");
  launch->set_world_size(4);
  launch->set_directives_through(6);
  v1::Assignment* assignment = launch->add_assignments();
  assignment->set_worker("w1");
  assignment->set_rank(3);
  assignment->set_device("cuda:1");
  assignment->set_host_address("10.0.0.1");
  assignment->set_num_threads(8);
  assignment->set_buddy(1);
  launch->set_num_helpers(1);
  launch->set_ledger_through(41);
  launch->set_examine_json("{\"iteration\":7}");
  launch->add_assignments()->set_rank(-1);
  const auto order = ToOrder(response);
  ASSERT_TRUE(order.has_value());
  const auto& got = std::get<LaunchOrder>(*order);
  EXPECT_EQ(got.job_id, "job");
  EXPECT_EQ(got.epoch, 2);
  EXPECT_EQ(got.world_size, 4);
  EXPECT_EQ(got.directives_through, 6);
  EXPECT_EQ(got.num_helpers, 1);
  EXPECT_EQ(got.ledger_through, 41);
  EXPECT_EQ(got.examine_json, "{\"iteration\":7}");
  ASSERT_EQ(got.assignments.size(), 2u);
  EXPECT_EQ(got.assignments[0].buddy, 1);
  EXPECT_EQ(got.assignments[1].rank, -1) << "a spare";
  EXPECT_EQ(got.assignments[1].buddy, -1) << "of an older coordinator, too";
  EXPECT_EQ(got.assignments[0].worker, "w1");
  EXPECT_EQ(got.assignments[0].rank, 3);
  EXPECT_EQ(got.assignments[0].device, "cuda:1");
  EXPECT_EQ(got.assignments[0].host_address, "10.0.0.1");
  EXPECT_EQ(got.assignments[0].num_threads, 8);

  v1::ConnectResponse stop;
  stop.mutable_stop()->set_worker("w1");
  *stop.mutable_stop()->mutable_grace() = ToProto(absl::Seconds(3));
  EXPECT_EQ(std::get<StopOrder>(*ToOrder(stop)).grace, absl::Seconds(3));
}

TEST(ConvertTest, ProbesAndForgottenJobs) {
  v1::ConnectResponse response;
  response.mutable_probe()->set_job_id("job");
  response.mutable_probe()->set_epoch(2);
  response.mutable_probe()->set_request(7);
  const auto probe = std::get<ProbeJobOrder>(*ToOrder(response));
  EXPECT_EQ(probe.job_id, "job");
  EXPECT_EQ(probe.epoch, 2);
  EXPECT_EQ(probe.request, 7);
  response.mutable_forget_job()->set_job_id("old");
  EXPECT_EQ(std::get<ForgetJobOrder>(*ToOrder(response)).job_id, "old");
}

TEST(ConvertTest, ADirectiveToLeaveNamesItsStep) {
  v1::ConnectResponse response;
  v1::Directive* directive = response.mutable_directive();
  directive->set_number(4);
  directive->set_kind(v1::DIRECTIVE_KIND_CHECKPOINT_AND_EXIT);
  directive->set_iteration(12);
  directive->set_exit_code(16);
  const auto order = std::get<DirectiveOrder>(*ToOrder(response));
  EXPECT_EQ(order.directive,
            (Directive{4, Directive::Kind::kCheckpointAndExit, "", std::nullopt, 12, 16}));
}

TEST(ConvertTest, MessagesOfANewerCoordinatorAreSkipped) {
  EXPECT_FALSE(ToOrder(v1::ConnectResponse()).has_value());
  v1::ConnectResponse response;
  response.mutable_directive()->set_kind(static_cast<v1::DirectiveKind>(99));
  EXPECT_FALSE(ToOrder(response).has_value());
}

}  // namespace
}  // namespace muster
