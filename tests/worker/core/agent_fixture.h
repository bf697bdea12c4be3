// An AgentMachine and its events and actions in few words, so that a test reads as a trace.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/core/agent_machine.h"

namespace muster {

using State = AgentMachine::State;

// One word or phrase an action, so that a test reads as a trace.
inline std::string Name(const AgentToTrainer& message) {
  struct Visitor {
    std::string operator()(const AssignMessage& m) {
      std::string text =
          absl::StrCat("assign rank ", m.rank, " epoch ", m.epoch, " threads ", m.num_threads);
      if (m.num_helpers > 0) absl::StrAppend(&text, " helpers ", m.num_helpers);
      if (m.buddy >= 0) absl::StrAppend(&text, " buddy ", m.buddy);
      return text;
    }
    std::string operator()(const UniqueIdMessage& m) { return absl::StrCat("id ", m.id); }
    std::string operator()(const DirectiveMessage& m) {
      return absl::StrCat("directive ", m.directive.number);
    }
    std::string operator()(const AbortMessage& m) { return absl::StrCat("abort ", m.epoch); }
    std::string operator()(const ShutdownMessage& m) { return "shutdown"; }
    std::string operator()(const StoreReplyMessage& m) { return absl::StrCat("reply ", m.request); }
    std::string operator()(const ProbeMessage& m) { return absl::StrCat("probe ", m.request); }
  };
  return std::visit(Visitor{}, message);
}

inline std::string Name(const NodeReport& report) {
  struct Visitor {
    std::string operator()(const PhaseMessage& m) { return absl::StrCat("phase ", m.phase); }
    std::string operator()(const PublishUniqueIdMessage& m) { return absl::StrCat("id ", m.id); }
    std::string operator()(const StepMessage& m) { return absl::StrCat("step ", m.iteration); }
    std::string operator()(const EvaluationMessage& m) { return absl::StrCat("eval ", m.split); }
    std::string operator()(const CheckpointMessage& m) { return "checkpoint"; }
    std::string operator()(const EventMessage& m) { return absl::StrCat("event ", m.kind); }
    std::string operator()(const DoneMessage& m) { return absl::StrCat("done ", m.exit_code); }
    std::string operator()(const FailedMessage& m) { return "failed"; }
    std::string operator()(const TrainerExited& m) {
      if (!m.launch_error.empty()) return absl::StrCat("not launched: ", m.launch_error);
      return m.signal != 0 ? absl::StrCat("signal ", m.signal)
                           : absl::StrCat("exited ", m.exit_code);
    }
    std::string operator()(const NodeLogLines& m) {
      return absl::StrCat("log ", absl::StrJoin(m.lines, ","));
    }
    std::string operator()(const RestoredMessage& m) { return absl::StrCat("restored ", m.source); }
    std::string operator()(const RankTimesMessage& m) { return "times"; }
    std::string operator()(const ExamineMessage& m) { return "examine"; }
    std::string operator()(const TrainerProbed& m) {
      return absl::StrCat("probed ", m.request, " ", m.process_state, m.running ? "" : " gone",
                          m.reply ? absl::StrCat(" at ", m.reply->iteration) : " silent");
    }
    std::string operator()(const DeviceCheck& m) { return absl::StrCat("check ", m.device); }
  };
  return absl::StrCat(report.assignment.worker, " ", std::visit(Visitor{}, report.report));
}

inline std::string Name(const AgentAction& action) {
  struct Visitor {
    std::string operator()(const StartTrainerAction& a) {
      return absl::StrCat("start ", a.worker, "/", a.run);
    }
    std::string operator()(const SendToTrainerAction& a) {
      return absl::StrCat("to ", a.worker, "/", a.run, ": ", Name(a.message));
    }
    std::string operator()(const SignalTrainerAction& a) {
      return absl::StrCat("sigterm ", a.worker, "/", a.run);
    }
    std::string operator()(const EndTrainerAction& a) {
      return absl::StrCat("end ", a.worker, "/", a.run, " in ", absl::FormatDuration(a.grace));
    }
    std::string operator()(const StoreRequestAction& a) {
      return absl::StrCat("store ", a.job_id, " ", a.request.key);
    }
    std::string operator()(const TracePieceAction& a) {
      return absl::StrCat("trace of ", a.job_id, ", rank ", a.rank, ", from ", a.piece.offset);
    }
    std::string operator()(const SendBatchAction& a) {
      std::vector<std::string> names;
      for (const NodeReport& report : a.batch->reports) names.push_back(Name(report));
      return absl::StrCat("batch ", a.batch->sequence, ": ", absl::StrJoin(names, "; "));
    }
    std::string operator()(const LookAtProcessAction& a) {
      return absl::StrCat("look at ", a.worker, "/", a.run);
    }
    std::string operator()(const FreeSnapshotMemoryAction& a) {
      return absl::StrCat("free memory ", a.id);
    }
    std::string operator()(const CheckDeviceAction& a) {
      return absl::StrCat("check device of ", a.assignment.worker);
    }
    std::string operator()(const NewIncarnationAction&) { return "new incarnation"; }
    std::string operator()(const ExitAgentAction& a) { return a.goodbye ? "goodbye" : "leave"; }
  };
  return std::visit(Visitor{}, action);
}

class AgentMachineTest : public ::testing::Test {
 protected:
  using Trace = std::vector<std::string>;

  AgentMachineTest() : machine_(Options()) {}
  static AgentMachine::Options Options() {
    return {.workers = {"w0", "w1"}, .default_num_threads = 4};
  }

  Trace Handle(const AgentEvent& event) {
    Trace trace;
    for (const AgentAction& action : machine_.Handle(event, now_)) trace.push_back(Name(action));
    return trace;
  }
  Trace Order(const CoordinatorOrder& order) { return Handle(AgentEvent(order)); }
  Trace Tick(absl::Duration after) {
    now_ += after;
    return Handle(TickEvent{});
  }
  Trace Welcome(int64_t through = 0, std::vector<AssignmentKey> running = {}) {
    return Order(WelcomeOrder{through, std::move(running)});
  }
  Trace Launch(std::vector<std::string> workers, int64_t epoch = 1, std::string job = "job") {
    LaunchOrder order{.job_id = job, .epoch = epoch, .world_size = int(workers.size())};
    for (size_t i = 0; i < workers.size(); ++i) {
      order.assignments.push_back({.worker = workers[i], .rank = int(i)});
    }
    return Order(order);
  }
  template <typename What>
  Trace From(const std::string& worker, int64_t run, What what) {
    return Handle(RunEvent{worker, run, std::move(what)});
  }
  Trace Says(const std::string& worker, const TrainerToAgent& message, int64_t run = 1) {
    return From(worker, run, message);
  }
  Trace Exits(const std::string& worker, int code, int64_t run = 1) {
    return From(worker, run, TrainerExited{.exit_code = code});
  }
  // Connected, with w0 and w1 training epoch 1 as ranks 0 and 1.
  void Train() {
    Welcome();
    Launch({"w0", "w1"});
    Says("w0", HelloMessage{});
    Says("w1", HelloMessage{});
    ASSERT_EQ(machine_.state("w0"), State::kTraining);
    ASSERT_EQ(machine_.state("w1"), State::kTraining);
  }

  absl::Duration now_ = absl::Seconds(100);
  AgentMachine machine_;
};

}  // namespace muster
