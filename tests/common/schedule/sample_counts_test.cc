#include "common/schedule/sample_counts.h"

#include "gtest/gtest.h"

namespace muster {
namespace {

SampleCountOptions Base() {
  return {.global_batch_size = 32, .train_iters = 1000, .eval_interval = 100, .eval_iters = 10};
}

TEST(SampleCountsTest, CountsG10_6) {
  const SampleCounts counts = CountSamples(Base());
  EXPECT_EQ(counts.train, 32000);
  EXPECT_EQ(counts.valid, 3520);
  EXPECT_EQ(counts.test, 320);
}

TEST(SampleCountsTest, LateStartG10_6) {
  SampleCountOptions options = Base();
  options.start_eval_at_iter = 300;
  EXPECT_EQ(CountSamples(options).valid, 2560);
  options.start_eval_at_iter = 5000;
  EXPECT_EQ(CountSamples(options).valid, 0);
}

TEST(SampleCountsTest, ResumeG10_6) {
  const ConsumedSamples resumed = ResumePosition(Base(), 250, 0, 0);
  EXPECT_EQ(resumed.train, 8000);
  EXPECT_EQ(resumed.valid, 640);
  const ConsumedSamples saved = ResumePosition(Base(), 250, 123, 45);
  EXPECT_EQ(saved.train, 123);
  EXPECT_EQ(saved.valid, 45);
  EXPECT_EQ(ResumePosition(Base(), 0, 0, 0).valid, 0);
}

TEST(SampleCountsTest, OtherForms) {
  SampleCountOptions options = Base();
  options.eval_global_batch_size = 8;
  EXPECT_EQ(CountSamples(options).valid, 11 * 80);
  options.at_start = true;
  EXPECT_EQ(CountSamples(options).valid, 12 * 80);
  options.full_validation = true;
  EXPECT_EQ(CountSamples(options).valid, std::nullopt);
  EXPECT_EQ(ResumePosition(options, 250, 5, 7).valid, 0);

  SampleCountOptions skip = Base();
  skip.skip_train = true;
  EXPECT_EQ(CountSamples(skip).valid, 320);

  SampleCountOptions only_end = Base();
  only_end.eval_interval.reset();
  EXPECT_EQ(CountSamples(only_end).valid, 320);
  EXPECT_EQ(ResumePosition(only_end, 250, 0, 0).valid, 0);

  SampleCountOptions samples = Base();
  samples.train_iters.reset();
  samples.train_samples = 5000;  // 156 iterations
  EXPECT_EQ(CountSamples(samples).train, 5000);
  EXPECT_EQ(CountSamples(samples).valid, 2 * 320);
  EXPECT_EQ(ResumePosition(samples, 50, 0, 0).train, 0);
}

}  // namespace
}  // namespace muster
