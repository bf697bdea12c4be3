#include "tests/coordinator/engine/scripted_life.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/coordinator/core/test_spec.h"

namespace muster {
namespace {

CoordinatorOptions Options() {
  CoordinatorOptions options;
  options.max_jobs = 3;  // the fourth makes the oldest ended one be forgotten
  return options;
}

}  // namespace

ScriptedLife::ScriptedLife() : checker_(std::make_unique<InvariantChecker>()) {
  nodes_[0].agent = {
      .incarnation = "incarnation-one",
      .node = "n1",
      .address = "10.0.0.1",
      .workers = {{"n1/0", "cpu", DeviceKind::kCpu, 0}, {"n1/1", "cpu", DeviceKind::kCpu, 1}}};
  nodes_[1].agent = {.incarnation = "incarnation-two",
                     .node = "n2",
                     .address = "10.0.0.2",
                     .workers = {{"n2/0", "cpu", DeviceKind::kCpu, 0}}};
  folders_.emplace_back();
  Open(folders_.back().path());
}

void ScriptedLife::Open(const std::string& folder) {
  auto journal = SqliteJournal::Open({.path = folder + "/journal.sqlite", .reserve_bytes = 0});
  ASSERT_TRUE(journal.ok()) << journal.status();
  journal_ = *std::move(journal);
  faulty_ = std::make_unique<FaultyJournal>(journal_.get());
  core_ = std::make_unique<Coordinator>(Options());
}

void ScriptedLife::CrashAt(int64_t write, FaultyJournal::Moment moment) {
  moment_ = moment;
  faulty_->CrashAt(write, moment);
}

std::vector<LedgerRow> ScriptedLife::Ledger() {
  auto state = journal_->Load(1'000'000);
  EXPECT_TRUE(state.ok()) << state.status();
  return state->ledger;
}

bool ScriptedLife::Write() {
  const DurableChanges changes = core_->TakeChanges();
  if (changes.empty()) return true;
  if (!faulty_->Write(changes).ok()) return false;
  written_ = core_->SaveAll();
  return true;
}

std::optional<Outcome> ScriptedLife::Try(const Event& event) {
  Outcome outcome = core_->Handle(event, now_);
  if (!Write()) return std::nullopt;
  EXPECT_THAT(checker_->Check(*core_), testing::IsEmpty());
  for (const Action& action : outcome.actions) {
    const auto* send = std::get_if<SendToAgent>(&action);
    if (send == nullptr) continue;
    for (Node& node : nodes_) {
      if (node.stream != send->stream) continue;
      int64_t through = 0;
      if (const auto* ack = std::get_if<AckMessage>(&send->message)) through = ack->through;
      if (const auto* hello = std::get_if<WelcomeMessage>(&send->message)) {
        through = hello->reports_through;
      }
      while (!node.unacknowledged.empty() && node.unacknowledged.front().sequence <= through) {
        node.unacknowledged.pop_front();
      }
    }
  }
  return outcome;
}

void ScriptedLife::Restart() {
  ++num_restarts_;
  ASSERT_EQ(num_restarts_, 1) << "a write failed that was not to fail";
  // What the dead process leaves: its files as they are. Closing them would tidy up.
  const std::string before = folders_.back().path();
  folders_.emplace_back();
  std::filesystem::copy(before, folders_.back().path());
  const DurableState expected =
      moment_ == FaultyJournal::Moment::kBefore ? written_ : core_->SaveAll();
  Open(folders_.back().path());
  const auto state = journal_->Load(1'000'000);
  ASSERT_TRUE(state.ok()) << state.status();
  const absl::Status restored = core_->Restore(*state, now_);
  ASSERT_TRUE(restored.ok()) << restored;
  if (!state->records.empty()) {  // nothing was lost, nothing was decided
    EXPECT_EQ(core_->SaveAll().records, expected.records);
    EXPECT_EQ(core_->SaveAll().ledger, expected.ledger);
  }
  EXPECT_THAT(checker_->Check(*core_), testing::IsEmpty());
  for (Node& node : nodes_) {
    if (node.stream != 0) Connect(&node);
  }
}

void ScriptedLife::Connect(Node* node) {
  node->stream = next_stream_++;
  const auto opened = Try(OpenStream{node->agent.incarnation, node->stream});
  ASSERT_TRUE(opened.has_value());
  ASSERT_TRUE(opened->status.ok()) << opened->status;
  SendUnacknowledged(node);
}

void ScriptedLife::SendUnacknowledged(Node* node) {
  for (ReportBatch batch : std::deque<ReportBatch>(node->unacknowledged)) {
    batch.stream = node->stream;
    if (!Try(batch).has_value()) return Restart();  // which sends all of them again
  }
}

Outcome ScriptedLife::Call(const Event& event) {
  auto outcome = Try(event);
  if (!outcome.has_value()) {
    Restart();
    outcome = Try(event);
  }
  EXPECT_TRUE(outcome.has_value() && outcome->status.ok()) << outcome->status;
  return *std::move(outcome);
}

void ScriptedLife::Join(Node* node) {
  Call(node->agent);
  const StreamId stream = next_stream_++;
  if (Try(OpenStream{node->agent.incarnation, stream}).has_value()) {
    node->stream = stream;
  } else {
    node->stream = stream;
    Restart();  // connects it
  }
}

void ScriptedLife::Tick() {
  now_ += absl::Milliseconds(100);
  for (Node& node : nodes_) {
    if (node.stream != 0) Call(Heartbeat{.stream = node.stream});
  }
  (void)core_->Tick(now_);
  if (!Write()) {
    Restart();
    (void)core_->Tick(now_);
    ASSERT_TRUE(Write());
  }
}

std::string ScriptedLife::Submit(const std::string& key, int world_size) {
  const Outcome outcome = Call(SubmitJob{
      .spec_json = TestSpec({.world_size = world_size, .save = "/c"}), .idempotency_key = key});
  return std::get<SubmitReply>(outcome.reply).job_id;
}

void ScriptedLife::Request(const std::string& job, const std::string& reason) {
  if (Try(RequestDirective{.job_id = job, .reason = reason}).has_value()) return;
  Restart();
  // A directive has no key: who got no answer looks first.
  for (const Directive& directive : core_->FindJob(job)->directives().After(0)) {
    if (directive.reason == reason) return;
  }
  Call(RequestDirective{.job_id = job, .reason = reason});
}

void ScriptedLife::Report(const std::string& job, int rank, const ReportBody& body) {
  const RankSlot slot = core_->FindJob(job)->ranks()[static_cast<size_t>(rank)];
  Node& node = slot.incarnation == "incarnation-one" ? nodes_[0] : nodes_[1];
  const AssignmentRef from{slot.worker, job, core_->FindJob(job)->epoch(), rank};
  node.unacknowledged.push_back({node.stream, node.next_batch++, {{from, body}}});
  SendUnacknowledged(&node);
  EXPECT_TRUE(node.unacknowledged.empty());
}

void ScriptedLife::ReportAll(const std::string& job, const ReportBody& body) {
  for (int rank = 0; rank < core_->FindJob(job)->world_size(); ++rank) Report(job, rank, body);
}

void ScriptedLife::Step(const std::string& job, int64_t iteration) {
  const JobMachine& machine = *core_->FindJob(job);
  StepMessage step;
  step.iteration = iteration;
  step.consumed_samples = 2 * iteration;
  step.lm_loss = 1.0 / static_cast<double>(iteration);
  step.applied_directive = machine.directives().last();
  Report(job, machine.world_size() - 1, step);
}

void ScriptedLife::Form(const std::string& job) {
  ReportAll(job, PhaseMessage{.phase = "forming"});
  Report(job, 0, PublishUniqueIdMessage{1, "abcd"});
  Call(SetKey{.job_id = job, .epoch = 1, .key = "group/0", .value = "address"});
  ReportAll(job, PhaseMessage{.phase = "training"});
}

void ScriptedLife::Run() {
  Join(&nodes_[0]);
  Join(&nodes_[1]);
  Tick();
  const std::string first = Submit("a", 2);
  Form(first);
  for (int64_t i = 1; i <= 3; ++i) Step(first, i);
  Request(first, "save it");
  Step(first, 4);
  Report(first, 0, CheckpointMessage{.epoch = 1, .iteration = 4, .path = "/c/4", .ok = true});
  const std::string second = Submit("b", 3);  // waits
  Tick();
  Call(CancelJob{.job_id = second, .reason = "not wanted"});
  Call(DrainWorker{.worker = "n2/0"});
  const std::string third = Submit("c", 1);
  Call(DrainWorker{.worker = "n2/0", .undo = true});
  Form(third);
  Step(third, 1);
  Call(CancelJob{.job_id = third, .reason = "enough"});
  Report(third, 0, DoneMessage{1, 0, "stopped"});
  Report(third, 0, ExitedReport{.exit_code = 0});
  Step(first, 5);
  Report(
      first, 0,
      EvaluationMessage{.epoch = 1, .iteration = 5, .split = "valid", .lm_loss = 1.5, .ppl = 4.5});
  ReportAll(first, DoneMessage{1, 0, "trained 5 iterations"});
  ReportAll(first, ExitedReport{.exit_code = 0});
  const std::string fourth = Submit("d", 2);  // forgets the first
  Form(fourth);
  Step(fourth, 1);
  Report(fourth, 1, ExitedReport{.signal = 9, .last_log_lines = {"out of memory"}});
  Tick();
  Report(fourth, 0, ExitedReport{.exit_code = 0});
  Tick();
}

}  // namespace muster
