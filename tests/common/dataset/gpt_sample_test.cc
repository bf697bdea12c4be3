#include "common/dataset/gpt_sample.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

struct Sample {
  std::vector<int64_t> tokens, labels, position_ids;
  std::vector<float> loss_mask;
  std::vector<std::string> mask_rows;  // 'x' = masked
};

Sample Fill(const std::vector<int64_t>& text, GptSampleOptions options) {
  const size_t s = text.size() - 1;
  options.seq_length = static_cast<int64_t>(s);
  Sample sample{std::vector<int64_t>(s),
                std::vector<int64_t>(s),
                std::vector<int64_t>(s),
                std::vector<float>(s),
                {}};
  auto mask = std::make_unique<bool[]>(s * s);
  FillGptSample(text.data(), options,
                {sample.tokens.data(), sample.labels.data(), sample.loss_mask.data(),
                 sample.position_ids.data(), mask.get()});
  for (size_t i = 0; i < s; ++i) {
    sample.mask_rows.emplace_back();
    for (size_t j = 0; j < s; ++j) sample.mask_rows.back() += mask[i * s + j] ? 'x' : '.';
  }
  return sample;
}

// G10.3: tokens 5 6 0 7 8 0 9 3.
const std::vector<int64_t> kText = {5, 6, 0, 7, 8, 0, 9, 3, 1};

TEST(GptSampleTest, AllThreeOptions) {
  const Sample sample = Fill(
      kText, {.reset_position_ids = true, .reset_attention_mask = true, .eod_mask_loss = true});
  EXPECT_THAT(sample.tokens, ElementsAre(5, 6, 0, 7, 8, 0, 9, 3));
  EXPECT_THAT(sample.labels, ElementsAre(6, 0, 7, 8, 0, 9, 3, 1));
  EXPECT_THAT(sample.loss_mask, ElementsAre(1, 1, 0, 1, 1, 0, 1, 1));
  EXPECT_THAT(sample.position_ids, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
  EXPECT_THAT(sample.mask_rows, ElementsAre(".xxxxxxx", "..xxxxxx", "...xxxxx", "xxx.xxxx",
                                            "xxx..xxx", "xxx...xx", "xxxxxx.x", "xxxxxx.."));
}

TEST(GptSampleTest, PlainCausal) {
  const Sample sample = Fill(kText, {});
  EXPECT_THAT(sample.loss_mask, Each(1.0f));
  EXPECT_THAT(sample.position_ids, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(sample.mask_rows[6], ".......x");
}

TEST(GptSampleTest, PaddingCountsNothing) {
  // No padding id: only what is not there.
  const Sample partial = Fill({13, 14, -1, -1, -1}, {.eod = 99});
  EXPECT_THAT(partial.tokens, ElementsAre(13, 14, 0, 0));
  EXPECT_THAT(partial.labels, ElementsAre(14, 0, 0, 0));
  EXPECT_THAT(partial.loss_mask, ElementsAre(1, 0, 0, 0));
  // A padding id of the tokenizer counts as padding too.
  const Sample padded = Fill({13, 14, 7, 15}, {.eod = 99, .pad = 7});
  EXPECT_THAT(padded.tokens, ElementsAre(13, 14, 0));
  EXPECT_THAT(padded.labels, ElementsAre(14, 0, 15));
  EXPECT_THAT(padded.loss_mask, ElementsAre(1, 0, 1));
}

}  // namespace
}  // namespace muster
