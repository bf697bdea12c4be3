// What trainers say (common/control/messages.h) <-> the reports of membership.proto that carry it
// from agent to coordinator. Thread-safe: functions of values.
#pragma once

#include <cstdint>
#include <optional>

#include "common/control/device_check.h"
#include "common/control/messages.h"
#include "muster/v1/membership.pb.h"

namespace muster {

// An epoch is the whole report's, and not repeated in its body.
v1::StepReport ToProto(const StepMessage& step);
StepMessage FromProto(const v1::StepReport& step, int64_t epoch);

v1::DeviceCheck ToProto(const DeviceCheck& check);
DeviceCheck FromProto(const v1::DeviceCheck& check);

v1::ProbeReply ToProto(const ProbeReplyMessage& reply);
// `probe`: which the reply is part of.
ProbeReplyMessage FromProto(const v1::ProbeReply& reply, const v1::ProbeReport& probe,
                            int64_t epoch);

// The trainer's own message that the report's body is. nullopt: the body is what its agent has seen
// (an exit, log lines, a probe, a device), or is not known here.
std::optional<TrainerToAgent> MessageOf(const v1::TrainerReport& report);
// Fills the body of `report`.
void SetBody(const PhaseMessage& message, v1::TrainerReport* report);
void SetBody(const PublishUniqueIdMessage& message, v1::TrainerReport* report);
void SetBody(const StepMessage& message, v1::TrainerReport* report);
void SetBody(const EvaluationMessage& message, v1::TrainerReport* report);
void SetBody(const CheckpointMessage& message, v1::TrainerReport* report);
void SetBody(const EventMessage& message, v1::TrainerReport* report);
void SetBody(const DoneMessage& message, v1::TrainerReport* report);
void SetBody(const FailedMessage& message, v1::TrainerReport* report);
void SetBody(const RestoredMessage& message, v1::TrainerReport* report);
void SetBody(const RankTimesMessage& message, v1::TrainerReport* report);
void SetBody(const ExamineMessage& message, v1::TrainerReport* report);

}  // namespace muster
