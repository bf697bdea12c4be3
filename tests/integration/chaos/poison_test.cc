// A batch that kills whoever computes it: the job does not loop over it, and says what it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/integration/chaos/fault_case.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class PoisonTest : public ::testing::Test {
 protected:
  PoisonTest() : chaos_({1, 1}), cluster_(chaos_.cluster()) {
    spec_ = ChaosSpec(ChaosLayouts()[0], 40);
    MakeUnruly(cluster_.folder().path(), &spec_);
    spec_["training"]["global_batch_size"] = 2;  // a microbatch a rank and step
    spec_["evaluation"] = {{"eval_iters", 0}};
    spec_["recovery"] = {{"max_restarts", 100}, {"max_failures_of_step", 3}};
  }

  // Runs without a poison, and says how one knows a microbatch that comes once, in the given step.
  std::string SumOfStep(int64_t step) {
    json spec = spec_;
    spec["resources"]["env"]["TEST_POISON_SUMS"] = cluster_.folder() / "sums";
    unbroken_ = RunUnbroken(cluster_, spec);
    std::vector<std::string> sums;
    std::istringstream lines(FileText(cluster_.folder() / "sums"));
    for (std::string line; std::getline(lines, line);) sums.push_back(line);
    for (size_t i = 2 * (step - 1); i < sums.size(); ++i) {
      if (std::count(sums.begin(), sums.end(), sums[i]) == 1) return sums[i];
    }
    ADD_FAILURE() << "no sum comes once";
    return "";
  }

  ChaosCluster chaos_;
  Cluster& cluster_;
  json spec_;
  UnbrokenRun unbroken_;
};

TEST_F(PoisonTest, ABatchThatKillsAgainAndAgainEndsTheJobAndIsNamed) {
  spec_["resources"]["env"]["TEST_POISON"] = SumOfStep(10);
  const std::string job = cluster_.Submit(spec_);
  ASSERT_NE(job, "") << cluster_.last_error;
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object()) << cluster_.Muster({"events", job}).out;
  EXPECT_EQ(status["state"], "FAILED") << status;
  EXPECT_EQ(status["exit_code"], 1);
  // The third failure of the step is the last; the first may be known before the step before it is.
  EXPECT_GE(status["restarts"], 2) << cluster_.Muster({"events", job}).out;
  EXPECT_LE(status["restarts"], 3) << cluster_.Muster({"events", job}).out;
  EXPECT_EQ(status["cause"]["signal"], SIGABRT) << status;
  const int64_t iteration = status["iteration"];
  EXPECT_GE(iteration, 9);
  EXPECT_THAT(status["reason"].get<std::string>(), HasSubstr(absl::StrCat(iteration + 1)))
      << "the step";
  EXPECT_TRUE(cluster_.WaitForWorkers(2));
  EXPECT_TRUE(cluster_.NoTrainerLeft());
  // What was done before it is what the unbroken run did.
  const std::vector<std::string> numbers = StepNumbers(cluster_, job);
  ASSERT_EQ(numbers.size(), static_cast<size_t>(iteration));
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], unbroken_.numbers[i]);
}

TEST_F(PoisonTest, ItIsLeftOutWhereTheSpecAllowsThat) {
  spec_["resources"]["env"]["TEST_POISON"] = SumOfStep(10);
  spec_["recovery"]["skip_poisoned_batch"] = true;
  const std::string job = cluster_.Submit(spec_);
  ASSERT_NE(job, "") << cluster_.last_error;
  const json status = cluster_.WaitForEnd(job);
  ASSERT_TRUE(status.is_object()) << Report(chaos_, job);
  ASSERT_EQ(status["state"], "COMPLETED") << status["reason"] << Report(chaos_, job);
  EXPECT_GE(status["restarts"], 2);
  EXPECT_LE(status["restarts"], 3);
  EXPECT_EQ(status["iteration"], 40);
  // Which step it is, by the event; the one that has no numbers.
  std::string named;
  for (const json& event : JsonLines(cluster_.Muster({"events", job, "--json"}).out)) {
    if (event["kind"] == "poisoned_batch") named = event["text"];
  }
  const int64_t step = NumberAfter(named, "; step ");
  EXPECT_GE(step, 10) << Report(chaos_, job);
  EXPECT_THAT(named, HasSubstr("is left out (recovery.skip_poisoned_batch)"));
  // All others are those of a run that leaves it out from the start.
  json skipping = spec_;
  skipping["resources"]["env"].erase("TEST_POISON");
  skipping["training"]["iterations_to_skip"] = {step};
  const std::string other = cluster_.Submit(skipping);
  const json quiet = cluster_.WaitForEnd(other);
  ASSERT_TRUE(quiet.is_object() && quiet["state"] == "COMPLETED") << quiet;
  const std::vector<std::string> expected = StepNumbers(cluster_, other);
  ASSERT_EQ(expected.size(), 39u);
  ExpectSameNumbers(StepNumbers(cluster_, job), expected);
  EXPECT_EQ(status["consumed_samples"], quiet["consumed_samples"]);
}

}  // namespace
}  // namespace muster
