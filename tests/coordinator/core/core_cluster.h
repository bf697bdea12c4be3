// A coordinator's core with agents as a test plays them: nodes that join, beat and report as told.
// Time goes by in ticks of 100 ms. Invariants are checked after everything.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/invariants.h"
#include "tests/coordinator/core/test_spec.h"

namespace muster {

class CoreCluster {
 public:
  explicit CoreCluster(const CoordinatorOptions& options = {}) : core_(options) {}

  Outcome Handle(const Event& event) {
    Outcome out = core_.Handle(event, now_);
    Take(out.actions);
    return out;
  }
  // One node with `slots` workers "n<node>/0", ...; its stream has the node's number.
  void Join(int node, int slots = 1, DeviceKind kind = DeviceKind::kCpu) {
    RegisterAgent agent{.incarnation = absl::StrCat("incarnation-", node),
                        .node = absl::StrCat("n", node),
                        .address = absl::StrCat("10.0.0.", node),
                        .num_cpus = slots};
    for (int i = 0; i < slots; ++i) {
      const bool cpu = kind == DeviceKind::kCpu;
      agent.workers.push_back(
          {WorkerName(node, i), cpu ? "cpu" : absl::StrCat("cuda:", i), kind, i});
    }
    ASSERT_TRUE(Handle(agent).status.ok());
    ASSERT_TRUE(Handle(OpenStream{agent.incarnation, StreamOf(node)}).status.ok());
    beating_.insert(node);
  }
  // Its process dies: the stream ends and nothing is heard again.
  void Die(int node) {
    beating_.erase(node);
    Handle(CloseStream{StreamOf(node)});
  }
  // The network to it is cut: nobody says anything.
  void Cut(int node) { beating_.erase(node); }
  void SayGoodbye(int node) {
    beating_.erase(node);
    EXPECT_TRUE(Handle(LeaveAgent{StreamOf(node), "drained for repair"}).status.ok());
  }

  std::string Submit(const TestSpecOptions& spec = {}) {
    const Outcome out = Handle(SubmitJob{.spec_json = TestSpec(spec)});
    EXPECT_TRUE(out.status.ok()) << out.status;
    const auto& reply = std::get<SubmitReply>(out.reply);
    for (const SpecProblem& problem : reply.problems) ADD_FAILURE() << problem.ToString();
    return reply.job_id;
  }
  const JobMachine& Job(const std::string& id) const { return *core_.FindJob(id); }

  // As the agent that holds the rank; of no effect when the trainer has ended or the agent is gone.
  void Report(const std::string& job, int rank, const ReportBody& body) {
    const RankSlot& slot = Job(job).ranks()[rank];
    const Agent* agent = core_.membership().FindAgent(slot.incarnation);
    if (agent == nullptr || agent->stream == 0) return;
    const AssignmentRef from{slot.worker, job, Job(job).epoch(), rank};
    Handle(ReportBatch{agent->stream, ++sequence_[agent->stream], {{from, body}}});
  }
  // As the agent that holds the worker, of an assignment that it may have had before.
  void ReportAs(const std::string& worker, const AssignmentRef& from, const ReportBody& body) {
    const Agent* agent = core_.membership().AgentOf(worker);
    Handle(ReportBatch{agent->stream, ++sequence_[agent->stream], {{from, body}}});
  }
  // As the agent that holds the worker, of whatever its assignment is.
  void ReportFrom(const std::string& worker, const ReportBody& body) {
    const Worker* found = core_.membership().FindWorker(worker);
    if (found == nullptr || !found->assignment.has_value()) return;
    const Agent* agent = core_.membership().FindAgent(found->incarnation);
    if (agent == nullptr || agent->stream == 0) return;
    const AssignmentRef from = *found->assignment;
    Handle(ReportBatch{agent->stream, ++sequence_[agent->stream], {{from, body}}});
  }
  void ReportAll(const std::string& job, const ReportBody& body) {
    for (int rank = 0; rank < Job(job).world_size(); ++rank) Report(job, rank, body);
  }
  void Phase(const std::string& job, const std::string& phase) {
    ReportAll(job, PhaseMessage{.phase = phase});
  }
  void Step(const std::string& job, int64_t iteration) {
    StepMessage step;
    step.iteration = iteration;
    step.applied_directive = Job(job).directives().last();
    Report(job, Job(job).world_size() - 1, step);
  }
  void Done(const std::string& job) { ReportAll(job, DoneMessage{.reason = "trained"}); }

  // Agents that are told to stop a trainer do, if `obedient`.
  void SetObedient(bool obedient) { obedient_ = obedient; }

  void Advance(absl::Duration by, absl::Duration tick = absl::Milliseconds(100)) {
    for (const absl::Time end = now_ + by; now_ < end;) {
      now_ += tick;
      for (const int node : std::set<int>(beating_)) Handle(Heartbeat{.stream = StreamOf(node)});
      Take(core_.Tick(now_));
    }
  }
  void Beat(int node, std::vector<TrainerProgress> progress) {
    Handle(Heartbeat{.stream = StreamOf(node), .progress = std::move(progress)});
  }

  template <typename Message>
  std::vector<Message> Sent(int node) const {
    std::vector<Message> found;
    const auto sent = sent_.find(StreamOf(node));
    if (sent == sent_.end()) return found;
    for (const AgentMessage& message : sent->second) {
      if (const auto* m = std::get_if<Message>(&message)) found.push_back(*m);
    }
    return found;
  }
  const std::vector<AgentMessage>& AllSent(int node) { return sent_[StreamOf(node)]; }
  bool IsIdle(const std::string& worker) const {
    const Worker* found = core_.membership().FindWorker(worker);
    return found != nullptr && core_.membership().IsIdle(*found);
  }
  static std::string WorkerName(int node, int slot) { return absl::StrCat("n", node, "/", slot); }
  static StreamId StreamOf(int node) { return static_cast<StreamId>(node); }

  Coordinator& core() { return core_; }
  absl::Time now() const { return now_; }

 private:
  void Take(const std::vector<Action>& actions) {
    EXPECT_THAT(checker_.Check(core_), testing::IsEmpty());
    for (const Action& action : actions) {
      const auto* send = std::get_if<SendToAgent>(&action);
      if (send == nullptr) continue;
      sent_[send->stream].push_back(send->message);
      const auto* stop = std::get_if<StopTrainerMessage>(&send->message);
      if (stop == nullptr || !obedient_) continue;
      ReportFrom(stop->worker, ExitedReport{.signal = 15});
    }
  }

  Coordinator core_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  InvariantChecker checker_;
  std::map<StreamId, std::vector<AgentMessage>> sent_;
  std::map<StreamId, int64_t> sequence_;
  std::set<int> beating_;
  bool obedient_ = true;
};

}  // namespace muster
