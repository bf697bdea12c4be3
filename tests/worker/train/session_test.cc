// A trainer process's life: assignments, failures, shutdown, as its agent sees it.

#include "worker/train/session.h"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/test_agent.h"
#include "tests/worker/train/train_test_util.h"
#include "worker/comm/thread_communicator.h"

namespace muster {
namespace {

using testing::HasSubstr;

// A session in a thread of its own, and the agent that speaks with it. The worlds of epoch e come
// from `worlds`.
class Trainer {
 public:
  explicit Trainer(std::vector<CommunicatorPtr> worlds = {})
      : worlds_(std::move(worlds)), client_(agent.TakeTrainerEnd(), [] {}), thread_([this] {
          exit_code_ = RunSession(
              {.client = client_,
               .clock = clock_,
               .use_device =
                   [this](const std::string& device) {
                     devices.push_back(device);
                     return device == "cuda:7" ? absl::FailedPreconditionError("no cuda:7 here")
                                               : absl::OkStatus();
                   },
               .make_unique_id =
                   [](const auto&...) { return absl::StatusOr<std::string>("the id"); },
               .form_world =
                   [this](const FormWorldOptions& options) -> absl::StatusOr<CommunicatorPtr> {
                 EXPECT_EQ(options.unique_id, "the id");
                 EXPECT_EQ(options.backend, "gloo");
                 return worlds_[static_cast<size_t>(options.assignment.epoch - 1)];
               }});
        }) {}
  ~Trainer() {
    if (thread_.joinable()) End();
  }

  int End() {
    agent.Send(ShutdownMessage{.reason = "the test is over"});
    thread_.join();
    return exit_code_;
  }

  TestAgent agent;
  std::vector<std::string> devices;  // that were made ready; read after the session's messages

 private:
  const std::vector<CommunicatorPtr> worlds_;
  RealClock clock_;
  ControlClient client_;
  int exit_code_ = -1;
  std::thread thread_;
};

AssignMessage Assign(int64_t epoch, const std::string& spec, int rank = 0, int world_size = 1) {
  AssignMessage assign;
  assign.job_id = "job";
  assign.epoch = epoch;
  assign.rank = rank;
  assign.world_size = world_size;
  assign.spec_json = spec;
  assign.device = "cpu";
  return assign;
}

TEST(SessionTest, TwoAssignmentsThenShutdown) {
  TrainTestRoot root;
  const std::string spec =
      root.Spec({"training.train_iters=3", absl::StrCat("checkpoint.save=", root / "ckpt"),
                 absl::StrCat("checkpoint.load=", root / "ckpt"), "checkpoint.save_interval=2"});
  Trainer trainer;
  EXPECT_GT(trainer.agent.WaitFor<HelloMessage>().pid, 0);
  trainer.agent.Send(Assign(1, spec));
  for (int64_t iteration = 1; iteration <= 3; ++iteration) {
    const auto step = trainer.agent.WaitFor<StepMessage>();
    EXPECT_EQ(step.epoch, 1);
    EXPECT_EQ(step.iteration, iteration);
  }
  const auto done = trainer.agent.WaitFor<DoneMessage>();
  EXPECT_EQ(done.epoch, 1);
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_EQ(done.reason, "trained 3 iterations");

  // It begins where the first ended: nothing is left to do.
  trainer.agent.Send(Assign(2, spec));
  const auto again = trainer.agent.WaitFor<DoneMessage>();
  EXPECT_EQ(again.epoch, 2);
  EXPECT_EQ(again.reason, "trained 3 iterations");
  EXPECT_EQ(trainer.End(), 0);
}

// A GPU has kernels to register and memory to count even where there is no world to form.
TEST(SessionTest, TheDeviceIsMadeReadyInAWorldOfOneToo) {
  TrainTestRoot root;
  Trainer trainer;
  AssignMessage elsewhere = Assign(1, root.Spec());
  elsewhere.device = "cuda:7";
  trainer.agent.Send(elsewhere);
  EXPECT_THAT(trainer.agent.WaitFor<FailedMessage>().reason, HasSubstr("no cuda:7 here"));
  trainer.agent.Send(Assign(2, root.Spec()));
  EXPECT_EQ(trainer.agent.WaitFor<DoneMessage>().epoch, 2);
  EXPECT_EQ(trainer.End(), 0);
  EXPECT_THAT(trainer.devices, testing::ElementsAre("cuda:7", "cpu"));
}

TEST(SessionTest, AFailedAssignmentIsToldAndTheNextOneRuns) {
  TrainTestRoot root;
  Trainer trainer;
  trainer.agent.Send(Assign(1, "{\"model\": {\"num_layers\": -1}}"));
  const auto bad_spec = trainer.agent.WaitFor<FailedMessage>();
  EXPECT_EQ(bad_spec.epoch, 1);
  EXPECT_THAT(bad_spec.reason, HasSubstr("model.num_layers"));
  EXPECT_FALSE(bad_spec.collective);

  AssignMessage bad_device = Assign(2, root.Spec());
  bad_device.device = "abacus";
  trainer.agent.Send(bad_device);
  EXPECT_THAT(trainer.agent.WaitFor<FailedMessage>().reason, HasSubstr("abacus"));

  trainer.agent.Send(
      Assign(3, root.Spec({absl::StrCat("data.data_path=[\"", root / "nothing", "\"]")})));
  EXPECT_THAT(trainer.agent.WaitFor<FailedMessage>().reason, HasSubstr("nothing"));

  trainer.agent.Send(Assign(4, root.Spec()));
  EXPECT_EQ(trainer.agent.WaitFor<DoneMessage>().epoch, 4);
}

TEST(SessionTest, AnAbortEndsAnAttemptOfOneRankToo) {
  TrainTestRoot root;
  Trainer trainer;
  trainer.agent.Send(Assign(1, root.Spec({"training.train_iters=100000"})));
  trainer.agent.WaitFor<StepMessage>();
  trainer.agent.Send(AbortMessage{.epoch = 1, .reason = "the coordinator wants it"});
  const auto failed = trainer.agent.WaitFor<FailedMessage>();
  EXPECT_TRUE(failed.collective);
  EXPECT_THAT(failed.reason, HasSubstr("the coordinator wants it"));
  AssignMessage other = Assign(2, root.Spec());
  other.job_id = "another job";
  trainer.agent.Send(other);
  EXPECT_EQ(trainer.agent.WaitFor<DoneMessage>().epoch, 2);
}

TEST(SessionTest, TwoRanksFormTheWorldByUniqueIdAndDirectivesReachThem) {
  TrainTestRoot root;
  const std::string spec = root.Spec({"training.train_iters=100000", "resources.world_size=2"});
  const auto first = MakeThreadWorld(2);
  const auto second = MakeThreadWorld(2);
  Trainer zero({first[0], second[0]}), one({first[1], second[1]});
  Trainer* const trainers[] = {&zero, &one};
  for (int64_t epoch = 1; epoch <= 2; ++epoch) {
    for (int rank = 0; rank < 2; ++rank) trainers[rank]->agent.Send(Assign(epoch, spec, rank, 2));
    EXPECT_EQ(zero.agent.WaitFor<PublishUniqueIdMessage>().epoch, epoch);
    for (Trainer* trainer : trainers) {
      trainer->agent.Send(UniqueIdMessage{.epoch = epoch, .id = "the id"});
    }
    EXPECT_EQ(zero.agent.WaitFor<StepMessage>().epoch, epoch);
    if (epoch == 1) {
      // Only one rank is told: the other's attempt ends with it.
      one.agent.Send(AbortMessage{.epoch = 1, .reason = "worker lost"});
      for (Trainer* trainer : trainers) {
        const auto failed = trainer->agent.WaitFor<FailedMessage>();
        EXPECT_TRUE(failed.collective);
        EXPECT_THAT(failed.reason, HasSubstr("worker lost"));
      }
      continue;
    }
    for (Trainer* trainer : trainers) {
      trainer->agent.Send(
          DirectiveMessage{.epoch = 2, .directive = {1, Directive::Kind::kStop, "enough"}});
    }
    for (Trainer* trainer : trainers) {
      EXPECT_EQ(trainer->agent.WaitFor<DoneMessage>().reason, "directive 1: enough");
    }
  }
}

void WaitForPhase(TestAgent& agent, const std::string& phase) {
  while (agent.WaitFor<PhaseMessage>().phase != phase) {
  }
}

TEST(SessionTest, AReformKeepsTheStateForTheNextEpoch) {
  TrainTestRoot root;
  const std::string spec = root.Spec({"training.train_iters=100000"});
  Trainer trainer;
  trainer.agent.Send(Assign(1, spec));
  trainer.agent.WaitFor<StepMessage>();
  trainer.agent.Send(
      DirectiveMessage{.epoch = 1, .directive = {1, Directive::Kind::kReform, "a drain"}});
  int64_t iteration = 0;
  while (true) {
    const TrainerToAgent message = trainer.agent.Next();
    if (const auto* step = std::get_if<StepMessage>(&message)) iteration = step->iteration;
    const auto* phase = std::get_if<PhaseMessage>(&message);
    if (phase != nullptr && phase->phase == "yielded") break;
  }
  AssignMessage next = Assign(2, spec);
  next.directives_through = 1;
  next.ledger_through = iteration;
  trainer.agent.Send(next);
  const auto restored = trainer.agent.WaitFor<RestoredMessage>();
  EXPECT_EQ(restored.epoch, 2);
  EXPECT_EQ(restored.iteration, iteration);
  EXPECT_EQ(restored.source, "live");
  EXPECT_EQ(trainer.agent.WaitFor<StepMessage>().iteration, iteration + 1);
  trainer.agent.Send(
      DirectiveMessage{.epoch = 2, .directive = {2, Directive::Kind::kStop, "enough"}});
  EXPECT_EQ(trainer.agent.WaitFor<DoneMessage>().reason, "directive 2: enough");
}

TEST(SessionTest, AProbeIsAnsweredWhateverTheTrainingThreadDoes) {
  TrainTestRoot root;
  const std::string spec = root.Spec({"resources.world_size=2"});
  const auto worlds = MakeThreadWorld(2);
  Trainer zero({worlds[0]});
  zero.agent.Send(Assign(1, spec, 0, 2));
  zero.agent.Send(UniqueIdMessage{.epoch = 1, .id = "the id"});
  // Its peer never comes: it waits in the first barrier.
  WaitForPhase(zero.agent, "forming");
  zero.agent.Send(ProbeMessage{.epoch = 1, .request = 7});
  const auto reply = zero.agent.WaitFor<ProbeReplyMessage>();
  EXPECT_EQ(reply.epoch, 1);
  EXPECT_EQ(reply.request, 7);
  EXPECT_EQ(reply.phase, "forming");
  EXPECT_GE(reply.thread_cpu_ms, 0);
  zero.agent.Send(AbortMessage{.epoch = 1, .reason = "the test has seen it"});
  EXPECT_TRUE(zero.agent.WaitFor<FailedMessage>().collective);
}

TEST(SessionTest, AProbeSaysWhichOperationARankIsIn) {
  TrainTestRoot root;
  const std::string spec = root.Spec({"training.train_iters=100000", "resources.world_size=2"});
  const auto worlds = MakeThreadWorld(2);
  Trainer zero({worlds[0]}), one({worlds[1]});
  int rank = 0;
  for (Trainer* trainer : {&zero, &one}) {
    trainer->agent.Send(Assign(1, spec, rank++, 2));
    trainer->agent.Send(UniqueIdMessage{.epoch = 1, .id = "the id"});
  }
  zero.agent.WaitFor<StepMessage>();
  one.agent.Send(ProbeMessage{.epoch = 1, .request = 1});
  const auto reply = one.agent.WaitFor<ProbeReplyMessage>();
  EXPECT_EQ(reply.phase, "training");
  EXPECT_GE(reply.iteration, 1);
  EXPECT_GT(reply.thread_cpu_ms, 0);
  const auto world = std::find_if(reply.ops.begin(), reply.ops.end(),
                                  [](const OpArrival& op) { return op.group == "world"; });
  ASSERT_NE(world, reply.ops.end());
  EXPECT_THAT(world->ranks, testing::ElementsAre(0, 1));
  EXPECT_GE(world->sequence, 1);
  one.agent.Send(AbortMessage{.epoch = 1, .reason = "the test has seen it"});
  for (Trainer* trainer : {&zero, &one}) trainer->agent.WaitFor<FailedMessage>();
}

TEST(SessionTest, ASpareIsWarmAndTakesTheNextAssignment) {
  TrainTestRoot root;
  Trainer trainer;
  trainer.agent.Send(Assign(1, root.Spec(), /*rank=*/-1));
  // It rehearses steps, and nobody hears of them.
  while (true) {
    const TrainerToAgent message = trainer.agent.Next();
    EXPECT_FALSE(std::holds_alternative<StepMessage>(message));
    const auto* phase = std::get_if<PhaseMessage>(&message);
    if (phase != nullptr && phase->phase == "spare") break;
  }
  trainer.agent.Send(Assign(2, root.Spec()));
  EXPECT_EQ(trainer.agent.WaitFor<DoneMessage>().epoch, 2);
  EXPECT_EQ(trainer.End(), 0);
}

}  // namespace
}  // namespace muster
