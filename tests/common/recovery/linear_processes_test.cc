#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "linear_hub.h"
#include "linear_trainer.h"

namespace muster {
namespace {

LinearRun RunToTheEnd(const LinearJob& job, const LinearHubOptions& options = {}) {
  const absl::StatusOr<LinearRun> run = RunLinearJob(job, options);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() ? *run : LinearRun();
}

// Bit for bit, whatever happened on the way.
void ExpectSame(const LinearRun& run, const LinearRun& unbroken) {
  EXPECT_EQ(run.ledger, unbroken.ledger);
  for (int rank = 0; rank < kLinearRanks; ++rank) {
    const LinearState &a = run.final[rank], &b = unbroken.final[rank];
    EXPECT_EQ(a.iteration, b.iteration);
    EXPECT_EQ(std::memcmp(&a.weights, &b.weights, sizeof(a.weights)), 0) << "rank " << rank;
    EXPECT_EQ(std::memcmp(&a.momenta, &b.momenta, sizeof(a.momenta)), 0) << "rank " << rank;
  }
}

class LinearProcessesTest : public ::testing::TestWithParam<bool> {
 protected:
  LinearProcessesTest() {
    job_.sharded = GetParam();
    unbroken_ = RunToTheEnd(job_);
  }

  LinearJob job_;
  LinearRun unbroken_;
};

TEST_P(LinearProcessesTest, TheModelLearns) {
  EXPECT_EQ(unbroken_.deaths, 0);
  ASSERT_EQ(unbroken_.ledger.size(), 6u);
  EXPECT_LT(std::stod(unbroken_.ledger[6]), std::stod(unbroken_.ledger[1]) / 2);
}

TEST_P(LinearProcessesTest, AKillAtEveryPointOfAStepChangesNoBit) {
  for (const char* point : kStepPoints) {
    for (int rank = 0; rank < kLinearRanks; ++rank) {
      for (int first = 0; first < kLinearRanks; ++first) {
        SCOPED_TRACE(absl::StrCat("rank ", rank, " at \"", point, "\", first ", first));
        LinearJob job = job_;
        job.kills = {{.rank = rank, .point = point, .step = 3}};
        const LinearRun run = RunToTheEnd(job, {.first = first});
        EXPECT_EQ(run.deaths, 1);
        ExpectSame(run, unbroken_);
        // At most the step under way is agreed on twice; a lost half goes back to the snapshot
        // before, too.
        EXPECT_LE(run.agreements, job.steps + (job.sharded ? 2 : 1));
      }
    }
  }
}

TEST_P(LinearProcessesTest, AKillBetweenTheAgreementsReturnsChangesNoBit) {
  for (int first = 0; first < kLinearRanks; ++first) {
    SCOPED_TRACE(first);
    const LinearRun run = RunToTheEnd(job_, {.first = first, .kill_second_in_agreement = 3});
    EXPECT_EQ(run.deaths, 1);
    ExpectSame(run, unbroken_);
    // The survivor knows the result: the step is not run again where its state is all there.
    if (!job_.sharded) {
      EXPECT_EQ(run.agreements, job_.steps);
    }
  }
}

TEST_P(LinearProcessesTest, ALostMemoryIsMadeUpForByTheBuddys) {
  for (const char* point : kStepPoints) {
    for (int rank = 0; rank < kLinearRanks; ++rank) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, " at \"", point, "\""));
      LinearJob job = job_;
      job.kills = {{.rank = rank, .point = point, .step = 4}};
      const LinearRun run = RunToTheEnd(job, {.lose_memory = true});
      EXPECT_EQ(run.deaths, 1);
      ExpectSame(run, unbroken_);
      EXPECT_LE(run.agreements, job.steps + (job.sharded ? 3 : 1));
    }
  }
}

TEST_P(LinearProcessesTest, AKillInTheRecoveryOfAKillChangesNoBit) {
  for (const char* point : {"prepared", "agreed", "committed", "own torn", "own copied"}) {
    for (const char* second : kRecoveryPoints) {
      for (int rank = 0; rank < kLinearRanks; ++rank) {
        for (int other = 0; other < kLinearRanks; ++other) {
          SCOPED_TRACE(absl::StrCat("rank ", rank, " at \"", point, "\", rank ", other, " at \"",
                                    second, "\" of the recovery"));
          LinearJob job = job_;
          job.kills = {{.rank = rank, .point = point, .step = 3},
                       {.rank = other, .point = second, .epoch = 2}};
          const LinearRun run = RunToTheEnd(job);
          EXPECT_EQ(run.deaths, 2);
          ExpectSame(run, unbroken_);
        }
      }
    }
  }
}

TEST_P(LinearProcessesTest, BothKilledGoOnFromTheirMemory) {
  LinearJob job = job_;
  job.kills = {{.rank = 0, .point = "buddy copied", .step = 4},
               {.rank = 1, .point = "formed", .epoch = 2}};
  const LinearRun run = RunToTheEnd(job);
  EXPECT_EQ(run.deaths, 2);
  ExpectSame(run, unbroken_);
  EXPECT_LE(run.agreements, job.steps + 1) << "they began anew";
}

TEST_P(LinearProcessesTest, WithoutSnapshotsBothKilledBeginAnew) {
  LinearJob job = job_;
  job.interval = 0;
  job.kills = {{.rank = 0, .point = "committed", .step = 4},
               {.rank = 1, .point = "formed", .epoch = 2}};
  const LinearRun run = RunToTheEnd(job);
  EXPECT_EQ(run.deaths, 2);
  ExpectSame(run, unbroken_);
  EXPECT_GT(run.agreements, job.steps + 2);
}

INSTANTIATE_TEST_SUITE_P(State, LinearProcessesTest, ::testing::Bool(),
                         [](const auto& state) { return state.param ? "Sharded" : "Replicated"; });

}  // namespace
}  // namespace muster
