// A coordinator's core with a journal: it can die and be restored at any moment, and agents come
// back as a test says. Time goes by in ticks of 100 ms.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/invariants.h"
#include "tests/coordinator/core/map_journal.h"
#include "tests/coordinator/core/test_spec.h"

namespace muster {

class RestartTest : public testing::Test {
 protected:
  Outcome Handle(const Event& event) {
    Outcome out = core_->Handle(event, now_);
    Write();
    Keep(out.actions);
    return out;
  }
  void Write() {
    journal_.Write(core_->TakeChanges());
    EXPECT_THAT(checker_.Check(*core_), testing::IsEmpty());
  }
  void Keep(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (const auto* send = std::get_if<SendToAgent>(&action)) {
        sent_[send->stream].push_back(send->message);
      }
    }
  }
  void Restart(const CoordinatorOptions& options = {}) {
    core_ = std::make_unique<Coordinator>(options);
    const absl::Status status = core_->Restore(journal_.Load(), now_);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(core_->TakeChanges().empty());
    EXPECT_THAT(checker_.Check(*core_), testing::IsEmpty());
    sent_.clear();
    beating_.clear();
  }
  void Join(int node, int slots = 1) {
    RegisterAgent agent{.incarnation = absl::StrCat("incarnation-", node),
                        .node = absl::StrCat("n", node),
                        .address = absl::StrCat("10.0.0.", node)};
    for (int i = 0; i < slots; ++i) {
      agent.workers.push_back({absl::StrCat("n", node, "/", i), "cpu", DeviceKind::kCpu, i});
    }
    ASSERT_TRUE(Handle(agent).status.ok());
    ASSERT_TRUE(Connect(node).ok());
  }
  absl::Status Connect(int node) {
    beating_.insert(node);
    return Handle(OpenStream{absl::StrCat("incarnation-", node), static_cast<StreamId>(node)})
        .status;
  }
  std::string Submit(const TestSpecOptions& spec = {}) {
    return std::get<SubmitReply>(Handle(SubmitJob{.spec_json = TestSpec(spec)}).reply).job_id;
  }
  void Report(int node, const std::string& job, int rank, const ReportBody& body) {
    const AssignmentRef from{Job(job).ranks()[rank].worker, job, Job(job).epoch(), rank};
    const absl::Status status =
        Handle(ReportBatch{static_cast<StreamId>(node), ++sequence_[node], {{from, body}}}).status;
    EXPECT_TRUE(status.ok()) << status;
  }
  void Train(const std::string& job, int64_t iteration, int64_t applied_directive = 0) {
    StepMessage step;
    step.iteration = iteration;
    step.applied_directive = applied_directive;
    Report(1, job, 0, step);
  }
  void Advance(absl::Duration by) {
    for (const absl::Time end = now_ + by; now_ < end;) {
      now_ += absl::Milliseconds(100);
      for (const int node : beating_) Handle(Heartbeat{.stream = static_cast<StreamId>(node)});
      Keep(core_->Tick(now_));
      Write();
    }
  }
  template <typename Message>
  std::vector<Message> Sent(StreamId stream) {
    std::vector<Message> found;
    for (const AgentMessage& message : sent_[stream]) {
      if (const auto* m = std::get_if<Message>(&message)) found.push_back(*m);
    }
    return found;
  }
  const JobMachine& Job(const std::string& id) { return *core_->FindJob(id); }
  const Agent& AgentOn(int node) {
    return *core_->membership().FindAgent(absl::StrCat("incarnation-", node));
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::unique_ptr<Coordinator> core_ = std::make_unique<Coordinator>(CoordinatorOptions{});
  InvariantChecker checker_;
  MapJournal journal_;
  std::map<StreamId, std::vector<AgentMessage>> sent_;
  std::map<int, int64_t> sequence_;
  std::set<int> beating_;
};

}  // namespace muster
