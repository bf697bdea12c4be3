// Random faults under a seed, in each layout: the job ends as the unbroken run does, bit for bit.
// MUSTER_CHAOS_SEED=N gives the seed (printed otherwise), MUSTER_CHAOS_SECONDS=N the long form.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/chaos/unbroken_run.h"

namespace muster {
namespace {

using nlohmann::json;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  int64_t value;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// The layouts' own jobs on a cluster of their own, with what they compute undisturbed.
class ChaosRuns {
 public:
  ChaosRuns(const ChaosLayout& layout, int train_iters)
      : layout_(layout), spec_(ChaosSpec(layout, train_iters)), chaos_(layout.slots_of_node) {
    unbroken_ = UnbrokenOf(chaos_.cluster(), spec_);
    MakeUnruly(chaos_.cluster().folder().path(), &spec_);
    SetPace(chaos_.cluster().folder().path(), kBriskPace);
  }

  void Run(uint32_t seed, int num_faults) {
    SCOPED_TRACE(absl::StrCat(layout_.name, ", MUSTER_CHAOS_SEED=", seed));
    const std::string job = chaos_.cluster().Submit(spec_);
    ASSERT_NE(job, "") << chaos_.cluster().last_error;
    ASSERT_TRUE(chaos_.cluster().WaitForIteration(job, 1)) << Report(chaos_, job);
    absl::Time next = absl::Now();
    int injected = 0;
    for (const Fault& fault : MakeSchedule({.seed = seed, .num_faults = num_faults})) {
      next += fault.after;
      while (absl::Now() < next) {
        chaos_.Advance();
        absl::SleepFor(absl::Milliseconds(2));
      }
      chaos_.Inject(fault);
      if (++injected % 3 == 0 && Ended(job)) break;
    }
    ExpectEndsAsUnbroken(chaos_, job, unbroken_);
  }

 private:
  bool Ended(const std::string& job) {
    if (chaos_.coordinator_away()) return false;
    const json status = chaos_.cluster().MusterJson({"status", job});
    return status.is_object() && !status["exit_code"].is_null();
  }

  const ChaosLayout layout_;
  json spec_;
  ChaosCluster chaos_;
  UnbrokenRun unbroken_;
};

class ChaosTest : public ::testing::TestWithParam<size_t> {};

TEST_P(ChaosTest, NumbersAreThoseOfTheUnbrokenRun) {
  const auto seed =
      static_cast<uint32_t>(FromEnvironment("MUSTER_CHAOS_SEED", std::random_device()() % 100'000));
  std::cout << "MUSTER_CHAOS_SEED=" << seed << std::endl;
  ChaosRuns(ChaosLayouts()[GetParam()], 100).Run(seed, 6);
}

INSTANTIATE_TEST_SUITE_P(Layouts, ChaosTest, ::testing::Range<size_t>(0, ChaosLayouts().size()),
                         [](const auto& info) {
                           std::string name;
                           for (const char letter : std::string(ChaosLayouts()[info.param].name)) {
                             if (std::isalnum(letter) != 0) name += letter;
                           }
                           return name;
                         });

// The long form: runs with consecutive seeds, the layouts in turn, until the time is up.
TEST(LongChaosTest, SeedAfterSeed) {
  const int64_t seconds = FromEnvironment("MUSTER_CHAOS_SECONDS", 0);
  if (seconds == 0) GTEST_SKIP() << "MUSTER_CHAOS_SECONDS is not set";
  auto seed =
      static_cast<uint32_t>(FromEnvironment("MUSTER_CHAOS_SEED", std::random_device()() % 100'000));
  const absl::Time until = absl::Now() + absl::Seconds(seconds);
  int runs = 0;
  while (absl::Now() < until) {
    // A cluster lives for a few jobs: what one leaves behind would hit the next.
    ChaosRuns layout(ChaosLayouts()[seed % ChaosLayouts().size()], 200);
    for (int i = 0; i < 3 && absl::Now() < until; ++i) {
      std::cout << "MUSTER_CHAOS_SEED=" << seed << " "
                << ChaosLayouts()[seed % ChaosLayouts().size()].name << std::endl;
      layout.Run(seed, 12);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "MUSTER_CHAOS_SEED=" << seed;
      ++runs;
      seed += static_cast<uint32_t>(ChaosLayouts().size());
    }
    ++seed;
  }
  std::cout << runs << " runs, the next seed is " << seed << std::endl;
}

}  // namespace
}  // namespace muster
