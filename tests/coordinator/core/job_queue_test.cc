#include "coordinator/core/job_queue.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

struct Row {
  const char* name;
  std::vector<QueuedJob> jobs;
  WorkerSupply cpu;
  std::vector<std::string> started;
  std::string first_reason;  // of the first job that does not start
};

QueuedJob Job(const char* id, int workers, int64_t sequence, int64_t priority = 0) {
  return {.job_id = id, .num_workers = workers, .priority = priority, .sequence = sequence};
}

TEST(JobQueueTest, Table) {
  const Row rows[] = {
      {"fits", {Job("a", 2, 1)}, {2, 2}, {"a"}, ""},
      {"says what it lacks",
       {Job("a", 2, 1)},
       {1, 1},
       {},
       "have 1 of 2 cpu workers; waiting for 1 more"},
      {"says that others are busy",
       {Job("a", 4, 1)},
       {1, 4},
       {},
       "have 1 of 4 cpu workers; waiting for 3 more (3 are busy)"},
      {"no workers at all",
       {Job("a", 1, 1)},
       {0, 0},
       {},
       "have 0 of 1 cpu workers; waiting for 1 more"},
      {"first in, first out",
       {Job("b", 1, 2), Job("a", 1, 1)},
       {1, 1},
       {"a"},
       "have 0 of 1 cpu workers; waiting for 1 more (1 are busy)"},
      {"priority goes first",
       {Job("a", 1, 1), Job("b", 1, 2, 5)},
       {1, 1},
       {"b"},
       "have 0 of 1 cpu workers; waiting for 1 more (1 are busy)"},
      {"a small job does not starve a large one",
       {Job("large", 4, 1), Job("small", 1, 2)},
       {1, 4},
       {},
       "have 1 of 4 cpu workers; waiting for 3 more (3 are busy)"},
      {"a job larger than the cluster holds back nobody",
       {Job("huge", 9, 1), Job("small", 1, 2)},
       {1, 4},
       {"small"},
       "have 1 of 9 cpu workers; waiting for 8 more (3 are busy)"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    std::vector<std::string> started;
    std::string reason;
    for (const auto& decision : DecideAdmission(row.jobs, {{DeviceKind::kCpu, row.cpu}})) {
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
  const auto decisions = DecideAdmission({cuda, Job("cpu", 1, 2)},
                                         {{DeviceKind::kCpu, {1, 1}}, {DeviceKind::kCuda, {1, 2}}});
  EXPECT_FALSE(decisions[0].start);
  EXPECT_TRUE(decisions[1].start);
}

}  // namespace
}  // namespace muster
