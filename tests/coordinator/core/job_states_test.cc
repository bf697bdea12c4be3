// Every state of a job against everything that may befall it: what becomes of it when its trainers
// obey, and that it ends within its limits when they do not.
#include <functional>

#include "tests/coordinator/core/core_cluster.h"

namespace muster {
namespace {

using testing::HasSubstr;

enum class Blow { kStop, kCheckpointAndStop, kKill, kDrain, kLost, kGoodbye };
constexpr Blow kBlows[] = {
    Blow::kStop, Blow::kCheckpointAndStop, Blow::kKill, Blow::kDrain, Blow::kLost, Blow::kGoodbye};
constexpr const char* kBlowNames[] = {"stop",  "checkpoint and stop", "kill",
                                      "drain", "worker lost",         "agent's goodbye"};

CoordinatorOptions ShortLimits() {
  CoordinatorOptions options;
  options.jobs.phases.CapAll(absl::Seconds(60));
  options.jobs.stop_limit = absl::Seconds(30);
  options.jobs.checkpoint_and_stop_limit = absl::Seconds(60);
  return options;
}

// A job of two ranks on nodes 1 and 2; the blow hits node 2.
struct World {
  CoreCluster cluster{ShortLimits()};
  std::string job;

  const JobMachine& machine() { return cluster.Job(job); }
  void Begin(int num_nodes) {
    for (int node = 1; node <= num_nodes; ++node) cluster.Join(node);
    job = cluster.Submit({.save = "/ckpt"});
  }
  void Train() {
    Begin(2);
    cluster.Phase(job, "training");
    cluster.Step(job, 1);
  }
  void Strike(Blow blow, int node) {
    const auto cancel = [&](CancelMode mode) {
      EXPECT_TRUE(cluster.Handle(CancelJob{job, "asked", mode}).status.ok());
    };
    switch (blow) {
      case Blow::kStop:
        return cancel(CancelMode::kStop);
      case Blow::kCheckpointAndStop:
        return cancel(CancelMode::kCheckpointAndStop);
      case Blow::kKill:
        return cancel(CancelMode::kKill);
      case Blow::kDrain:
        EXPECT_TRUE(
            cluster.Handle(DrainWorker{.worker = CoreCluster::WorkerName(node, 0)}).status.ok());
        return;
      case Blow::kLost:
        return cluster.Die(node);
      case Blow::kGoodbye:
        return cluster.SayGoodbye(node);
    }
  }
  bool MustStop() {
    for (const Directive& directive : machine().directives().After(0)) {
      if (directive.kind == Directive::Kind::kStop ||
          directive.kind == Directive::Kind::kCheckpointAndStop) {
        return true;
      }
    }
    return false;
  }
  // Trainers go on as good ones do, for at most ten seconds.
  void GoOn() {
    for (int i = 0; i < 20 && !(machine().ended() && machine().released()); ++i) {
      cluster.Advance(absl::Milliseconds(500));
      if (!IsActive(machine().state()) || machine().aborted()) continue;
      const bool both = machine().num_launched() == 2;
      if (both && machine().iteration() < 10) {
        cluster.Phase(job, "training");
        cluster.Step(job, machine().iteration() + 1);
      }
      if (both && (MustStop() || machine().iteration() >= 10)) cluster.Done(job);
    }
  }
};

struct Row {
  const char* state;
  std::function<void(World&)> reach;
  // Of the job after each blow, in the order of kBlows, with trainers that obey.
  const char* expected[6];
  int hit_node = 2;
};

void Symptom(World& w) {
  w.cluster.Report(w.job, 0, FailedMessage{.reason = "all-reduce: closed", .collective = true});
}

std::vector<Row> Rows() {
  const char* C = "CANCELLED";
  const char* F = "FAILED";
  const char* Q = "QUEUED";
  const char* D = "COMPLETED";
  return {
      {"queued", [](World& w) { w.Begin(1); }, {C, C, C, Q, Q, Q}, 1},
      {"launched", [](World& w) { w.Begin(2); }, {C, C, C, D, F, F}},
      {"forming",
       [](World& w) {
         w.Begin(2);
         w.cluster.Phase(w.job, "forming");
       },
       {C, C, C, D, F, F}},
      {"loading",
       [](World& w) {
         w.Begin(2);
         w.cluster.Phase(w.job, "loading");
       },
       {C, C, C, D, F, F}},
      {"training", [](World& w) { w.Train(); }, {C, C, C, D, F, F}},
      {"evaluating",
       [](World& w) {
         w.Train();
         w.cluster.Phase(w.job, "evaluating");
       },
       {C, C, C, D, F, F}},
      {"saving",
       [](World& w) {
         w.Train();
         w.cluster.Phase(w.job, "saving");
       },
       {C, C, C, D, F, F}},
      {"seeking the cause of a symptom",
       [](World& w) {
         w.Train();
         Symptom(w);
       },
       {C, F, C, F, F, F}},
      {"stopping",
       [](World& w) {
         w.Train();
         w.Strike(Blow::kStop, 2);
       },
       {C, C, C, C, C, C}},
      {"saving its last checkpoint",
       [](World& w) {
         w.Train();
         w.Strike(Blow::kCheckpointAndStop, 2);
         w.cluster.Phase(w.job, "saving");
       },
       {C, C, C, C, F, F}},
      {"trained, one rank done",
       [](World& w) {
         w.Train();
         w.cluster.Step(w.job, 10);
         w.cluster.Report(w.job, 0, DoneMessage{.reason = "trained"});
       },
       {D, D, C, D, F, F}},
      {"completed, trainers not gone yet",
       [](World& w) {
         w.Train();
         w.cluster.SetObedient(false);
         w.cluster.Step(w.job, 10);
         w.cluster.Done(w.job);
       },
       {D, D, D, D, D, D}},
      {"failed, trainers not gone yet",
       [](World& w) {
         w.Train();
         w.cluster.SetObedient(false);
         w.cluster.Report(w.job, 0, FailedMessage{.reason = "no such file"});
       },
       {F, F, F, F, F, F}},
      {"cancelled, trainers not gone yet",
       [](World& w) {
         w.Train();
         w.cluster.SetObedient(false);
         w.Strike(Blow::kKill, 2);
       },
       {C, C, C, C, C, C}},
  };
}

TEST(JobStatesTest, EveryStateTimesEveryBlowEndsAsItShould) {
  for (const Row& row : Rows()) {
    for (size_t i = 0; i < std::size(kBlows); ++i) {
      SCOPED_TRACE(absl::StrCat(row.state, " x ", kBlowNames[i]));
      World world;
      row.reach(world);
      const bool was_ended = world.machine().ended();
      const std::string reason = world.machine().reason();
      world.Strike(kBlows[i], row.hit_node);
      world.GoOn();
      EXPECT_STREQ(JobStateName(world.machine().state()), row.expected[i])
          << world.machine().reason();
      if (was_ended) {
        EXPECT_EQ(world.machine().reason(), reason);
      } else if (std::string(row.expected[i]) != "COMPLETED") {
        EXPECT_NE(world.machine().reason(), "");
      }
      if (world.machine().state() == JobState::kQueued) continue;
      if (was_ended) {  // the agents do at last what they were told
        world.cluster.SetObedient(true);
        world.cluster.Advance(absl::Minutes(2), absl::Milliseconds(500));
      }
      EXPECT_TRUE(world.machine().released());
      // What is drained or gone is not used again; the other node is.
      const bool gone =
          kBlows[i] == Blow::kDrain || kBlows[i] == Blow::kLost || kBlows[i] == Blow::kGoodbye;
      const std::string hit = CoreCluster::WorkerName(row.hit_node, 0);
      EXPECT_EQ(world.cluster.IsIdle(hit), !gone);
      if (row.hit_node != 1) {
        EXPECT_TRUE(world.cluster.IsIdle("n1/0"));
      }
    }
  }
}

TEST(JobStatesTest, TrainersThatNeitherAdvanceNorObeyEndWithinTheLimits) {
  for (const Row& row : Rows()) {
    for (size_t i = 0; i < std::size(kBlows); ++i) {
      SCOPED_TRACE(absl::StrCat(row.state, " x ", kBlowNames[i]));
      World world;
      row.reach(world);
      world.Strike(kBlows[i], row.hit_node);
      world.cluster.SetObedient(true);  // the agents kill what does not stop
      world.cluster.Advance(absl::Minutes(3), absl::Milliseconds(500));
      if (world.machine().state() == JobState::kQueued) continue;  // it says what it lacks
      EXPECT_TRUE(world.machine().ended()) << JobStateName(world.machine().state());
      EXPECT_TRUE(world.machine().released());
    }
  }
}

TEST(JobStatesTest, AnAgentThatDoesNotEndItsTrainersIsToldAgainAndNamed) {
  World world;
  world.Train();
  world.cluster.SetObedient(false);
  world.Strike(Blow::kKill, 2);
  EXPECT_EQ(world.cluster.Sent<StopTrainerMessage>(2).size(), 1u);
  world.cluster.Advance(absl::Seconds(34), absl::Milliseconds(500));
  EXPECT_EQ(world.cluster.Sent<StopTrainerMessage>(2).size(), 2u);
  const auto wait = world.machine().Wait(world.cluster.core().Signs());
  ASSERT_TRUE(wait.has_value());
  EXPECT_EQ(wait->phase, "stop");
  EXPECT_TRUE(wait->overdue);
  EXPECT_THAT(wait->missing, HasSubstr("rank 1 (node n2, worker n2/0)"));
  EXPECT_EQ(world.machine().history().events().newest().value.kind, "not_released");
  world.cluster.Advance(absl::Seconds(100), absl::Milliseconds(500));
  EXPECT_EQ(world.cluster.Sent<StopTrainerMessage>(2).size(), 3u);  // and not all the time
  EXPECT_FALSE(world.cluster.IsIdle("n2/0"));  // a device with a process on it is not given away
}

TEST(JobStatesTest, AStopWaitsForASaveThatHasBegunButNotForEver) {
  World world;
  world.Train();
  world.Strike(Blow::kStop, 2);
  world.cluster.Advance(absl::Seconds(25), absl::Milliseconds(500));
  world.cluster.Phase(world.job, "saving");
  world.cluster.Advance(absl::Seconds(50), absl::Milliseconds(500));
  EXPECT_FALSE(world.machine().ended());
  world.cluster.Advance(absl::Seconds(11), absl::Milliseconds(500));
  EXPECT_EQ(world.machine().state(), JobState::kCancelled);
  EXPECT_THAT(world.machine().reason(), HasSubstr("did not stop in time and were killed: "));
}

TEST(JobStatesTest, ADrainedIdleWorkerIsGoneFromTheSupply) {
  CoreCluster cluster;
  cluster.Join(1, 2);
  ASSERT_TRUE(cluster.Handle(DrainWorker{.worker = "n1/1"}).status.ok());
  const std::string job = cluster.Submit();
  EXPECT_EQ(cluster.Job(job).state(), JobState::kQueued);
  EXPECT_THAT(cluster.Job(job).reason(), HasSubstr("1 is draining"));
  ASSERT_TRUE(cluster.Handle(DrainWorker{.worker = "n1/1", .undo = true}).status.ok());
  EXPECT_EQ(cluster.Job(job).state(), JobState::kForming);
}

}  // namespace
}  // namespace muster
