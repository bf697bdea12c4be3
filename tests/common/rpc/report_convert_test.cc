#include "common/rpc/report_convert.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

constexpr int64_t kEpoch = 3;

template <typename Message>
Message ThereAndBack(const Message& message) {
  v1::TrainerReport report;
  report.set_epoch(kEpoch);
  SetBody(message, &report);
  // Through its bytes, as it travels.
  v1::TrainerReport received;
  EXPECT_TRUE(received.ParseFromString(report.SerializeAsString()));
  const std::optional<TrainerToAgent> said = MessageOf(received);
  EXPECT_TRUE(said.has_value() && std::holds_alternative<Message>(*said));
  return std::get<Message>(*said);
}

template <typename Message>
void ExpectComesBack(const Message& message) {
  EXPECT_EQ(Encode(TrainerToAgent(ThereAndBack(message))), Encode(TrainerToAgent(message)));
}

TEST(ReportConvertTest, WhatATrainerSaysComesBack) {
  ExpectComesBack(PhaseMessage{kEpoch, "saving", "iteration 5"});
  ExpectComesBack(PublishUniqueIdMessage{kEpoch, "00ff"});
  ExpectComesBack(EvaluationMessage{kEpoch, 40, "valid", 1.0 / 3.0, 1.4, true});
  ExpectComesBack(CheckpointMessage{kEpoch, 40, "/ckpt/iter_0000040", false, "disk full", 12.5});
  ExpectComesBack(EventMessage{kEpoch, "snapshot", "rank 1: no room"});
  ExpectComesBack(DoneMessage{kEpoch, 17, "failed on the same batch"});
  ExpectComesBack(FailedMessage{kEpoch, "rank 1 is gone", true});
  ExpectComesBack(RestoredMessage{kEpoch, 40, "live", "filled: 1", 1.5, 2.5, 1 << 20});
  ExpectComesBack(RankTimesMessage{kEpoch, 40, 10, 9.5, 1.25, 0.125});
  ExpectComesBack(ExamineMessage{kEpoch, 40, "{\"stage\": 1}"});
}

TEST(ReportConvertTest, AStepKeepsEveryDigitAndWhatIsAbsent) {
  ExpectComesBack(StepMessage{.epoch = kEpoch,
                              .iteration = 41,
                              .consumed_samples = 328,
                              .lm_loss = 1.0 / 3.0,
                              .grad_norm = 2.0 / 3.0,
                              .num_zeros = 0,
                              .learning_rate = 3e-4,
                              .loss_scale = 65536,
                              .elapsed_ms = 6.25,
                              .skipped = true,
                              .memory_bytes = 1 << 30,
                              .applied_directive = 2,
                              .global_batch_size = 8,
                              .timers_ms = {{"optimizer", 1.5}}});
  const StepMessage bare = ThereAndBack(StepMessage{.epoch = kEpoch, .loss_text = "nan"});
  EXPECT_FALSE(bare.lm_loss.has_value());
  EXPECT_FALSE(bare.grad_norm.has_value());
  EXPECT_FALSE(bare.num_zeros.has_value());
  EXPECT_EQ(bare.loss_text, "nan");
}

TEST(ReportConvertTest, DevicesAndProbesComeBack) {
  const DeviceCheck check{"cuda:1", "GPU", "GPU-1", "f0", 3.5, 100, "slow", true};
  EXPECT_EQ(FromProto(ToProto(check)), check);
  const ProbeReplyMessage reply{.epoch = kEpoch,
                                .request = 8,
                                .iteration = 99,
                                .phase = "training",
                                .thread_cpu_ms = 1.5,
                                .ops = {{"dp", {0, 2}, 7, "all_reduce", false, 12.5}}};
  v1::ProbeReport probe;
  probe.set_request(8);
  EXPECT_EQ(FromProto(ToProto(reply), probe, kEpoch), reply);
}

TEST(ReportConvertTest, WhatTheAgentHasSeenIsNoMessageOfTheTrainer) {
  v1::TrainerReport report;
  EXPECT_FALSE(MessageOf(report).has_value());
  report.mutable_exited()->set_signal(9);
  EXPECT_FALSE(MessageOf(report).has_value());
  report.mutable_log()->add_lines("a line");
  EXPECT_FALSE(MessageOf(report).has_value());
  report.mutable_device_check();
  EXPECT_FALSE(MessageOf(report).has_value());
}

}  // namespace
}  // namespace muster
