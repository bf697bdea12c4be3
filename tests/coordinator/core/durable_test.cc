// What is written and restored is the coordinator: random events, a map as the journal, restarts
// at any point. MUSTER_DURABLE_SEED=n runs one seed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "absl/strings/numbers.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/invariants.h"
#include "tests/coordinator/core/map_journal.h"
#include "tests/coordinator/core/random_events.h"

namespace muster {
namespace {

using testing::IsEmpty;

std::vector<std::string> Text(const DurableState& state) {
  std::vector<std::string> lines;
  for (const DurableRecord& record : state.records) {
    lines.push_back(absl::StrCat(record.key, " = ", record.value.value_or("(none)")));
  }
  for (const LedgerRow& row : state.ledger) {
    lines.push_back(absl::StrCat("ledger ", row.job, " ", static_cast<int>(row.kind), " ",
                                 row.index, " = ", row.value));
  }
  return lines;
}

// The first lines that differ; "": none.
std::string Difference(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() ? a[i] : "(nothing)";
    const std::string right = i < b.size() ? b[i] : "(nothing)";
    if (left != right) return absl::StrCat(left, "\n  is in the other:\n", right);
  }
  return "";
}

std::vector<std::string> RecordsOf(const DurableState& state) {
  return Text({.records = state.records});
}

CoordinatorOptions SmallLimits() {
  CoordinatorOptions options;
  options.max_jobs = 12;
  options.max_waiting_jobs = 5;
  options.job_tag = "t";
  options.membership.readoption_limit = absl::Seconds(5);
  options.membership.silence_limit = absl::Seconds(8);
  return options;
}

class RandomRun {
 public:
  explicit RandomRun(uint32_t seed) : events_(seed) {}

  void Step() {
    if (events_.Chance(15)) {
      now_ += absl::Milliseconds(events_.Chance(10) ? events_.Pick(30'000) : 100);
      const std::vector<Action> actions = core_->Tick(now_);
    } else {
      const Event event = events_.Next(*core_);
      events_.Note(event, core_->Handle(event, now_));
    }
    ASSERT_THAT(checker_.Check(*core_), IsEmpty());
    // Several events may share a transaction.
    if (events_.Chance(60)) {
      ASSERT_NO_FATAL_FAILURE(Commit());
    }
    if (events_.Chance(3)) {
      ASSERT_NO_FATAL_FAILURE(Restart());
    }
  }

  int num_restarts() const { return num_restarts_; }

 private:
  void Commit() {
    journal_.Write(core_->TakeChanges());
    if (journal_.records.empty()) return;  // nothing has happened yet
    ASSERT_EQ(Difference(RecordsOf(journal_.Load()), RecordsOf(core_->SaveAll())), "");
  }

  void Restart() {
    ++num_restarts_;
    ASSERT_NO_FATAL_FAILURE(Commit());
    const std::vector<std::string> before = Text(core_->SaveAll());
    auto next = std::make_unique<Coordinator>(SmallLimits());
    if (events_.Chance(20)) now_ -= absl::Hours(2);  // the clock was set meanwhile
    const absl::Status status = next->Restore(journal_.Load(), now_);
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(Difference(Text(next->SaveAll()), before), "");
    ASSERT_TRUE(next->TakeChanges().empty());
    core_ = std::move(next);
    events_.ForgetStreams();
    ASSERT_THAT(checker_.Check(*core_), IsEmpty());
  }

  RandomEvents events_;
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::unique_ptr<Coordinator> core_ = std::make_unique<Coordinator>(SmallLimits());
  InvariantChecker checker_;
  MapJournal journal_;
  int num_restarts_ = 0;
};

TEST(DurableTest, ARestoredCoordinatorIsTheOneThatWrote) {
  int one = 0;
  const char* text = std::getenv("MUSTER_DURABLE_SEED");
  const bool only = text != nullptr && absl::SimpleAtoi(text, &one);
  int restarts = 0;
  for (uint32_t seed = only ? one : 1; seed <= static_cast<uint32_t>(only ? one : 40); ++seed) {
    SCOPED_TRACE(absl::StrCat("MUSTER_DURABLE_SEED=", seed));
    RandomRun run(seed);
    for (int i = 0; i < 500; ++i) {
      run.Step();
      if (testing::Test::HasFailure()) return;
    }
    restarts += run.num_restarts();
  }
  EXPECT_GT(restarts, only ? 0 : 200);
}

}  // namespace
}  // namespace muster
