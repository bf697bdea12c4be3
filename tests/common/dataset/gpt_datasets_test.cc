#include "common/dataset/gpt_datasets.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/dataset/mock_documents.h"
#include "tests/common/dataset/test_folder.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// 20 documents of 10 tokens; token = 100 * base + document.
void WriteCorpus(const std::string& prefix, int64_t base) {
  std::vector<std::vector<int64_t>> documents;
  for (int64_t d = 0; d < 20; ++d) documents.emplace_back(10, 100 * base + d);
  WriteDocuments(prefix, documents);
}

std::vector<int64_t> Text(const SampleSource& samples, int64_t k, int64_t seq_length) {
  std::vector<int64_t> text(static_cast<size_t>(seq_length + 1));
  samples.ReadText(k, text.data());
  return text;
}

TEST(GptDatasetsTest, SplitsReadTheirOwnDocuments) {
  TestFolder folder;
  WriteCorpus(folder / "a", 1);
  GptDatasetsOptions options{.seq_length = 4, .data_path = {folder / "a"}, .split = "8,1,1"};
  auto datasets = BuildGptSamples(options);
  ASSERT_TRUE(datasets.ok()) << datasets.status();
  EXPECT_THAT(datasets->notes, IsEmpty());
  const int64_t first[] = {100, 116, 118};
  const int64_t last[] = {115, 117, 119};
  for (size_t s = 0; s < 3; ++s) {
    for (int64_t k = 0; k < datasets->samples[s]->size(); ++k) {
      for (const int64_t token : Text(*datasets->samples[s], k, 4)) {
        EXPECT_GE(token, first[s]);
        EXPECT_LE(token, last[s]);
      }
    }
  }
  EXPECT_EQ(datasets->samples[0]->size(), (160 - 1) / 4);
}

TEST(GptDatasetsTest, TooSmallASplitHasNoDataset) {
  TestFolder folder;
  WriteCorpus(folder / "a", 1);
  auto datasets = BuildGptSamples({.seq_length = 4, .data_path = {folder / "a"}});
  ASSERT_TRUE(datasets.ok()) << datasets.status();
  EXPECT_NE(datasets->samples[0], nullptr);
  EXPECT_NE(datasets->samples[1], nullptr);
  EXPECT_EQ(datasets->samples[2], nullptr);  // 0.001 of 20 documents
}

TEST(GptDatasetsTest, IndicesComeFromTheCacheTheSecondTime) {
  TestFolder folder;
  WriteCorpus(folder / "a", 1);
  GptDatasetsOptions options{.seq_length = 4,
                             .data_path = {folder / "a"},
                             .split = "1",
                             .num_samples = {60, std::nullopt, std::nullopt},
                             .cache_path = folder / "cache"};
  auto built = BuildGptSamples(options);
  ASSERT_TRUE(built.ok());
  int num_files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
    ++num_files;
  }
  EXPECT_EQ(num_files, 4);
  options.build_cache = false;
  auto mapped = BuildGptSamples(options);
  ASSERT_TRUE(mapped.ok());
  ASSERT_EQ(mapped->samples[0]->size(), built->samples[0]->size());
  for (int64_t k = 0; k < built->samples[0]->size(); ++k) {
    EXPECT_EQ(Text(*mapped->samples[0], k, 4), Text(*built->samples[0], k, 4));
  }
  // Another seed is another entry; without build_cache it is not written.
  options.seed = 7;
  ASSERT_TRUE(BuildGptSamples(options).ok());
  int after = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
    ++after;
  }
  EXPECT_EQ(after, 4);
}

TEST(GptDatasetsTest, DamagedCacheIsRebuiltAndNoted) {
  TestFolder folder;
  WriteCorpus(folder / "a", 1);
  GptDatasetsOptions options{
      .seq_length = 4, .data_path = {folder / "a"}, .split = "1", .cache_path = folder / "cache"};
  ASSERT_TRUE(BuildGptSamples(options).ok());
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
    if (entry.path().extension() == ".npy") WriteFile(entry.path().string(), "rubbish");
  }
  auto again = BuildGptSamples(options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT(again->notes, SizeIs(1));
  auto third = BuildGptSamples(options);
  EXPECT_THAT(third->notes, IsEmpty());
}

TEST(GptDatasetsTest, WeightedBlendMixesInProportion) {
  TestFolder folder;
  WriteCorpus(folder / "a", 1);
  WriteCorpus(folder / "b", 2);
  GptDatasetsOptions options{.seq_length = 4,
                             .data_path = {"0.7", folder / "a", "0.3", folder / "b"},
                             .split = "1",
                             .num_samples = {100, std::nullopt, std::nullopt}};
  auto datasets = BuildGptSamples(options);
  ASSERT_TRUE(datasets.ok()) << datasets.status();
  ASSERT_EQ(datasets->samples[0]->size(), 100);
  int from_a = 0;
  for (int64_t k = 0; k < 100; ++k) from_a += Text(*datasets->samples[0], k, 4)[0] < 200;
  EXPECT_EQ(from_a, 70);
  options.num_samples[0] = std::nullopt;
  EXPECT_THAT(BuildGptSamples(options).status().ToString(), HasSubstr("need a number of samples"));
}

TEST(GptDatasetsTest, BlendWithoutWeightsReadsEverySampleOnce) {
  TestFolder folder;
  WriteCorpus(folder / "a", 1);
  WriteCorpus(folder / "b", 2);
  GptDatasetsOptions options{
      .seq_length = 4, .data_path = {folder / "a", folder / "b"}, .split = "1"};
  auto all = BuildGptSamples(options);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->samples[0]->size(), 2 * (199 / 4));
  options.num_samples[0] = 30;
  EXPECT_EQ((*BuildGptSamples(options)).samples[0]->size(), 30);
  options.num_samples[0] = 1000;
  EXPECT_EQ((*BuildGptSamples(options)).samples[0]->size(), 2 * (199 / 4));
}

TEST(GptDatasetsTest, PathsPerSplitUseWholeFiles) {
  TestFolder folder;
  WriteCorpus(folder / "a", 1);
  WriteCorpus(folder / "b", 2);
  GptDatasetsOptions options{.seq_length = 4,
                             .split_data_path = {{{folder / "a"}, {"1", folder / "b"}, {}}}};
  auto datasets = BuildGptSamples(options);
  ASSERT_TRUE(datasets.ok()) << datasets.status();
  EXPECT_EQ(datasets->samples[0]->size(), 199 / 4);
  EXPECT_EQ(datasets->samples[1]->size(), 199 / 4);  // one weighted prefix is no blend here
  EXPECT_EQ(datasets->samples[2], nullptr);
  options.data_path = {folder / "a"};
  EXPECT_THAT(BuildGptSamples(options).status().ToString(), HasSubstr("exclude each other"));
}

TEST(GptDatasetsTest, MissingFilesAreNamed) {
  auto datasets = BuildGptSamples({.seq_length = 4, .data_path = {"/nowhere/corpus"}});
  EXPECT_EQ(datasets.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(datasets.status().ToString(), HasSubstr("/nowhere/corpus.idx"));
  EXPECT_EQ(BuildGptSamples({.seq_length = 4}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GptDatasetsTest, MockDataHasThreeSplits) {
  auto datasets =
      BuildMockSamples({.seq_length = 512, .split = "1,1,1", .num_samples = {64, 16, 16}}, 257);
  ASSERT_TRUE(datasets.ok()) << datasets.status();
  for (const auto& samples : datasets->samples) {
    ASSERT_NE(samples, nullptr);
    EXPECT_GE(samples->size(), 64);
    for (const int64_t token : Text(*samples, 0, 512)) {
      EXPECT_GE(token, 0);
      EXPECT_LT(token, 257);
    }
  }
}

}  // namespace
}  // namespace muster
