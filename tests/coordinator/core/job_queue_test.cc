#include "coordinator/core/job_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using testing::HasSubstr;

struct Row {
  const char* name;
  std::vector<QueuedJob> jobs;
  WorkerSupply cpu;
  std::vector<std::string> started;
  std::string first_reason;  // of the first job that does not start
};

QueuedJob Job(const std::string& id, int workers, int64_t sequence, int64_t priority = 0) {
  return {.job_id = id, .num_workers = workers, .priority = priority, .sequence = sequence};
}

TEST(JobQueueTest, Table) {
  const Row rows[] = {
      {"fits", {Job("a", 2, 1)}, {2, 2}, {"a"}, ""},
      {"says what it lacks",
       {Job("a", 2, 1)},
       {1, 1},
       {},
       "have 1 of 2 cpu workers; waiting for 1 more; the cluster has only 1: 1 must join"},
      {"says that others are busy",
       {Job("a", 4, 1)},
       {1, 4},
       {},
       "have 1 of 4 cpu workers; waiting for 3 more (3 are busy: other holds 3)"},
      {"says that some drain and some are not heard",
       {Job("a", 4, 1)},
       {.num_idle = 1, .num_usable = 2, .num_draining = 1, .num_unheard = 2},
       {},
       "have 1 of 4 cpu workers; waiting for 3 more (1 is busy: other holds 1; 1 is draining; "
       "2 are not heard now)"},
      {"no workers at all",
       {Job("a", 1, 1)},
       {0, 0},
       {},
       "have 0 of 1 cpu workers; waiting for 1 more; the cluster has only 0: 1 must join"},
      {"only draining ones",
       {Job("a", 1, 1)},
       {0, 0, 2},
       {},
       "have 0 of 1 cpu workers; waiting for 1 more (2 are draining); the cluster has only 0: 1 "
       "must join or be undrained"},
      {"first in, first out",
       {Job("b", 1, 2), Job("a", 1, 1)},
       {1, 1},
       {"a"},
       "have 0 of 1 cpu workers; waiting for 1 more (1 is given to jobs before it)"},
      {"priority goes first",
       {Job("a", 1, 1), Job("b", 1, 2, 5)},
       {1, 1},
       {"b"},
       "have 0 of 1 cpu workers; waiting for 1 more (1 is given to jobs before it)"},
      {"a small job does not starve a large one",
       {Job("large", 4, 1), Job("small", 1, 2)},
       {1, 4},
       {},
       "have 1 of 4 cpu workers; waiting for 3 more (3 are busy: other holds 3)"},
      {"nor while a worker of the large one is not heard for a moment",
       {Job("large", 4, 1), Job("small", 1, 2)},
       {.num_idle = 1, .num_usable = 3, .num_draining = 0, .num_unheard = 1},
       {},
       "have 1 of 4 cpu workers; waiting for 3 more (2 are busy: other holds 2; 1 is not heard "
       "now)"},
      {"a job larger than the cluster holds back nobody",
       {Job("huge", 9, 1), Job("small", 1, 2)},
       {1, 4},
       {"small"},
       "have 1 of 9 cpu workers; waiting for 8 more (3 are busy: other holds 3); the cluster has "
       "only 4: 5 must join"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    std::vector<std::string> started;
    std::string reason;
    const int busy = row.cpu.num_usable - row.cpu.num_idle;
    for (const auto& decision : DecideAdmission({.jobs = row.jobs,
                                .supply = {{DeviceKind::kCpu, row.cpu}},
                                .holders = {{.job_id = "other", .num_workers = busy}}})) {
      if (decision.start) {
        started.push_back(decision.job_id);
      } else if (reason.empty()) {
        reason = decision.reason;
      }
    }
    EXPECT_EQ(started, row.started);
    EXPECT_EQ(reason, row.first_reason);
  }
}

TEST(JobQueueTest, DeviceKindsDoNotHoldEachOtherBack) {
  QueuedJob cuda = Job("cuda", 2, 1);
  cuda.kind = DeviceKind::kCuda;
  const auto decisions =
      DecideAdmission({.jobs = {cuda, Job("cpu", 1, 2)},
                       .supply = {{DeviceKind::kCpu, {1, 1}}, {DeviceKind::kCuda, {1, 2}}}});
  EXPECT_FALSE(decisions[0].start);
  EXPECT_TRUE(decisions[1].start);
}

TEST(JobQueueTest, AKindThatNobodyHasIsNamedWithThoseThatAreThere) {
  QueuedJob cuda = Job("a", 2, 1);
  cuda.kind = DeviceKind::kCuda;
  EXPECT_EQ(DecideAdmission({.jobs = {cuda}, .supply = {{DeviceKind::kCpu, {4, 4}}}})[0].reason,
            "have 0 of 2 cuda workers; waiting for 2 more; the cluster has only 0: 2 must join "
            "(there are 4 cpu workers: resources.device may be wrong)");
}

TEST(JobQueueTest, WhoeverWaitsBehindAnotherSaysSo) {
  const auto decisions = DecideAdmission(
      {.jobs = {Job("a", 4, 1), Job("b", 1, 2)}, .supply = {{DeviceKind::kCpu, {1, 4}}}});
  EXPECT_EQ(decisions[1].reason, "needs 1 cpu workers; waits behind a, which lacks 3");
}

TEST(JobQueueTest, WhileNothingCanBeWrittenNothingStarts) {
  const auto decisions = DecideAdmission({.jobs = {Job("a", 1, 1)},
                                          .supply = {{DeviceKind::kCpu, {4, 4}}},
                                          .paused = "the journal's disk is full"});
  EXPECT_FALSE(decisions[0].start);
  EXPECT_EQ(decisions[0].reason,
            "no job is started now: the journal's disk is full; needs 1 cpu workers");
}

TEST(JobQueueTest, HoldersAreNamedTheLargestFirstAndBounded) {
  AdmissionInput input{.jobs = {Job("a", 100, 1)}, .supply = {{DeviceKind::kCpu, {0, 100}}}};
  for (int i = 1; i <= 10; ++i) {
    input.holders.push_back(
        {.job_id = absl::StrCat("job-", i), .num_workers = i, .ending = i == 10});
  }
  input.holders.push_back({.job_id = "gpu", .kind = DeviceKind::kCuda, .num_workers = 50});
  EXPECT_THAT(DecideAdmission(input)[0].reason,
              HasSubstr("job-10 holds 10 until its trainers have ended, job-9 holds 9, job-8 holds "
                        "8, job-7 holds 7, and 6 more jobs"));
}

// Many jobs with random sizes and priorities on one set of workers, to the end of the last one.
class QueueRun {
 public:
  QueueRun(uint32_t seed, int num_workers) : random_(seed), num_workers_(num_workers) {}

  void Run(int num_jobs) {
    for (int64_t now = 0; num_ended_ < num_jobs; ++now) {
      ASSERT_LT(now, 100'000) << "jobs wait for ever";
      if (next_ <= num_jobs && random_() % 3 == 0) Submit();
      for (auto it = running_.begin(); it != running_.end();) {
        const auto job = it++;
        if (job->second.second > now) continue;
        num_idle_ += job->second.first;
        ++num_ended_;
        running_.erase(job);
      }
      Admit(now);
    }
  }

 private:
  void Submit() {
    const int64_t sequence = next_++;
    queue_.push_back(Job(absl::StrCat(sequence), 1 + static_cast<int>(random_() % num_workers_),
                         sequence, static_cast<int64_t>(random_() % 3)));
  }
  void Admit(int64_t now) {
    const auto decisions = DecideAdmission(
        {.jobs = queue_, .supply = {{DeviceKind::kCpu, {num_idle_, num_workers_}}}});
    ASSERT_EQ(decisions.size(), queue_.size());
    bool held_back = false;
    const QueuedJob* before = nullptr;
    std::set<std::string> started;
    for (const AdmissionDecision& decision : decisions) {
      const QueuedJob& job = *std::find_if(queue_.begin(), queue_.end(), [&](const QueuedJob& j) {
        return j.job_id == decision.job_id;
      });
      // By priority, then by submission.
      if (before != nullptr) {
        EXPECT_TRUE(before->priority > job.priority ||
                    (before->priority == job.priority && before->sequence < job.sequence));
      }
      before = &job;
      // Who comes first and can ever start is not overtaken.
      EXPECT_FALSE(held_back && decision.start);
      if (!decision.start) {
        held_back = true;
        EXPECT_FALSE(decision.reason.empty());
        continue;
      }
      num_idle_ -= job.num_workers;
      ASSERT_GE(num_idle_, 0) << "more workers given than there are";  // gang or nothing
      running_[job.job_id] = {job.num_workers, now + 1 + static_cast<int64_t>(random_() % 20)};
      started.insert(job.job_id);
    }
    std::erase_if(queue_, [&](const QueuedJob& job) { return started.contains(job.job_id); });
  }

  std::mt19937 random_;
  const int num_workers_;
  int num_idle_ = num_workers_;
  int64_t next_ = 1;
  int num_ended_ = 0;
  std::vector<QueuedJob> queue_;
  std::map<std::string, std::pair<int, int64_t>> running_;  // workers, end
};

TEST(JobQueueTest, ManyJobsOnOneSetOfWorkersAllRunInOrder) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    QueueRun(seed, 1 + static_cast<int>(seed % 8)).Run(100);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace muster
