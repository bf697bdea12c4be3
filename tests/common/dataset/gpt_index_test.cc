#include "common/dataset/gpt_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/dataset/gpt_index_cache.h"
#include "common/dataset/sample_source.h"
#include "tests/common/dataset/test_folder.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GptIndexOptions Golden(std::optional<int64_t> num_samples) {
  return {.end_sequence = 4, .seq_length = 4, .num_samples = num_samples};
}

struct GoldenRow {
  std::optional<int64_t> num_samples;
  std::vector<int64_t> document, sample, shuffle;
};

// G10.2.
TEST(GptIndexTest, GoldenTable) {
  const GoldenRow rows[] = {
      {3, {0, 1, 2, 3}, {0, 0, 1, 1, 2, 0, 3, 2}, {1, 2, 0}},
      {4, {0, 1, 2, 3, 1, 2, 3, 0}, {0, 0, 1, 1, 2, 0, 3, 2, 4, 2, 5, 1, 6, 3}, {0, 2, 1, 3, 5, 4}},
      {5, {2, 1, 2, 0, 0, 1, 3, 3}, {0, 0, 1, 2, 2, 1, 4, 0, 5, 1, 6, 0, 7, 0}, {0, 4, 3, 2, 5, 1}},
      {6, {2, 1, 2, 0, 0, 1, 3, 3}, {0, 0, 1, 2, 2, 1, 4, 0, 5, 1, 6, 0, 7, 0}, {0, 4, 3, 2, 5, 1}},
      {7,
       {2, 1, 2, 0, 0, 1, 3, 3, 0, 2, 1, 3},
       {0, 0, 1, 2, 2, 1, 4, 0, 5, 1, 6, 0, 7, 0, 8, 0, 9, 1, 10, 3, 11, 2},
       {5, 0, 3, 4, 2, 1, 7, 9, 8, 6}},
      {9,
       {3, 0, 3, 2, 1, 2, 1, 0, 0, 1, 2, 3},
       {0, 0, 1, 0, 2, 1, 3, 1, 4, 3, 6, 0, 6, 4, 8, 0, 9, 1, 10, 0, 11, 2},
       {3, 9, 2, 1, 7, 5, 4, 0, 8, 6}},
  };
  const VectorSource source(kGoldenDocuments);
  for (const GoldenRow& row : rows) {
    SCOPED_TRACE(absl::StrCat("N=", *row.num_samples));
    auto index = BuildGptIndex(source, Golden(row.num_samples));
    ASSERT_TRUE(index.ok()) << index.status();
    EXPECT_EQ(index->document.ToVector(), row.document);
    EXPECT_EQ(index->sample.ToVector(), row.sample);
    EXPECT_EQ(index->shuffle.ToVector(), row.shuffle);
    EXPECT_EQ(index->document.type(), IndexType::kInt32);
    EXPECT_EQ(index->sample.type(), IndexType::kInt32);
    EXPECT_EQ(index->shuffle.type(), IndexType::kUint32);
  }
}

TEST(GptIndexTest, EpochsAndTheSeparateLastOne) {
  EXPECT_EQ(CountEpochs(14, 4, 4, true).num_epochs, 2);
  EXPECT_TRUE(CountEpochs(14, 4, 4, true).separate_last_epoch);
  EXPECT_EQ(CountEpochs(14, 4, 4, true).samples_before_last_epoch, 3);
  EXPECT_FALSE(CountEpochs(14, 4, 6, true).separate_last_epoch);
  EXPECT_EQ(CountEpochs(14, 4, std::nullopt, true).num_epochs, 1);
}

TEST(GptIndexTest, KeptPartialSampleOfValidation) {
  const VectorSource source(kGoldenDocuments);
  GptIndexOptions options = Golden(std::nullopt);
  options.drop_last_partial = false;
  auto index = BuildGptIndex(source, options);
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_THAT(index->sample.ToVector(), ElementsAre(0, 0, 1, 1, 2, 0, 3, 2, 3, 3));
  EXPECT_THAT(index->shuffle.ToVector(), ElementsAre(1, 2, 3, 0));
  const GptSamples samples(std::make_shared<VectorSource>(kGoldenDocuments), *index, 4);
  int64_t text[5];
  samples.ReadText(2, text);
  EXPECT_THAT(text, ElementsAre(13, 14, kNoToken, kNoToken, kNoToken));
}

TEST(GptIndexTest, EmptyLastDocumentOfAPartialSampleIsRefused) {
  const VectorSource source({{1, 2, 3}, {}});
  GptIndexOptions options{.end_sequence = 2, .seq_length = 4, .drop_last_partial = false};
  auto index = BuildGptIndex(source, options);
  EXPECT_EQ(index.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(index.status().ToString(), HasSubstr("empty document"));
}

TEST(GptIndexTest, TooFewTokensAreNamed) {
  const VectorSource source({{1, 2, 3}, {}});
  EXPECT_THAT(BuildGptIndex(source, {.end_sequence = 2, .seq_length = 4}).status().ToString(),
              HasSubstr("3 tokens, too few for one sample of model.seq_length=4"));
  EXPECT_THAT(BuildGptIndex(source, {.first_sequence = 1, .end_sequence = 2, .seq_length = 4})
                  .status()
                  .ToString(),
              HasSubstr("hold no tokens"));
}

TEST(GptSamplesTest, GoldenSamplesOfSix) {
  auto index = BuildGptIndex(VectorSource(kGoldenDocuments), Golden(6));
  ASSERT_TRUE(index.ok());
  const GptSamples samples(std::make_shared<VectorSource>(kGoldenDocuments), *index, 4);
  const std::vector<std::vector<int64_t>> expected = {{9, 10, 4, 5, 6},     {5, 6, 7, 8, 11},
                                                      {1, 2, 3, 4, 5},      {10, 1, 2, 3, 1},
                                                      {11, 12, 13, 14, 11}, {6, 7, 8, 9, 10}};
  ASSERT_EQ(samples.size(), 6);
  for (int64_t k = 0; k < 6; ++k) {
    std::vector<int64_t> text(5);
    samples.ReadText(k, text.data());
    EXPECT_EQ(text, expected[static_cast<size_t>(k)]) << "sample " << k;
  }
}

// Every token but the tail of each epoch stream is an input exactly once per pass.
TEST(GptSamplesTest, SamplesTileTheTokenStream) {
  std::vector<std::vector<int64_t>> documents;
  int64_t next = 0;
  for (int64_t d = 0; d < 40; ++d) {
    documents.emplace_back();
    for (int64_t i = 0; i < (d * 7) % 13; ++i) documents.back().push_back(next++);
  }
  auto source = std::make_shared<VectorSource>(documents);
  auto index = BuildGptIndex(*source, {.end_sequence = 40, .seq_length = 8, .seed = 5});
  ASSERT_TRUE(index.ok());
  const GptSamples samples(source, *index, 8);
  std::vector<int> seen(static_cast<size_t>(next), 0);
  for (int64_t k = 0; k < samples.size(); ++k) {
    int64_t text[9];
    samples.ReadText(k, text);
    for (int i = 0; i < 8; ++i) ++seen[static_cast<size_t>(text[i])];
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), samples.size() * 8);
  EXPECT_EQ(*std::max_element(seen.begin(), seen.end()), 1);
}

TEST(GptIndexCacheTest, RoundTripsThroughNpyFiles) {
  TestFolder folder;
  auto index = BuildGptIndex(VectorSource(kGoldenDocuments), Golden(9));
  const GptIndexCacheKey key{folder / "cache", "train", "{\"a\": 1}"};
  EXPECT_EQ(LoadGptIndex(key).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(SaveGptIndex(FileOps::Real(), key, *index).ok());
  auto loaded = LoadGptIndex(key);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->document.ToVector(), index->document.ToVector());
  EXPECT_EQ(loaded->sample.ToVector(), index->sample.ToVector());
  EXPECT_EQ(loaded->shuffle.ToVector(), index->shuffle.ToVector());
  EXPECT_EQ(loaded->shuffle.type(), IndexType::kUint32);
}

TEST(GptIndexCacheTest, DamageAndOtherDescriptionsAreNotUsed) {
  TestFolder folder;
  auto index = BuildGptIndex(VectorSource(kGoldenDocuments), Golden(9));
  const GptIndexCacheKey key{folder.path(), "train", "{}"};
  ASSERT_TRUE(SaveGptIndex(FileOps::Real(), key, *index).ok());
  std::string bytes = *ReadWholeFile(key.Path("sample_index.npy"));
  WriteFile(key.Path("sample_index.npy"), bytes.substr(0, bytes.size() - 4));
  EXPECT_EQ(LoadGptIndex(key).status().code(), absl::StatusCode::kDataLoss);
  WriteFile(key.Path("sample_index.npy"), bytes);
  EXPECT_TRUE(LoadGptIndex(key).ok());
  WriteFile(key.Path("description.txt"), "{ }");
  EXPECT_EQ(LoadGptIndex(key).status().code(), absl::StatusCode::kDataLoss);
}

// numpy.save(f, numpy.arange(6, dtype=numpy.int32).reshape(3, 2)): 128 bytes of header.
TEST(NpyFileTest, HeaderIsNumpys) {
  TestFolder folder;
  const IndexArray array = IndexArray::FromInt32({0, 1, 2, 3, 4, 5});
  ASSERT_TRUE(array.Write(FileOps::Real(), folder / "a.npy", 2).ok());
  const std::string bytes = *ReadWholeFile(folder / "a.npy");
  const std::string dict = "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }";
  ASSERT_EQ(bytes.size(), 128u + 24);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\0", 8));
  EXPECT_EQ(bytes.substr(8, 2), std::string("\x76\0", 2));
  EXPECT_EQ(bytes.substr(10, dict.size()), dict);
  EXPECT_EQ(bytes[127], '\n');
  EXPECT_EQ(bytes.substr(128, 8), std::string("\0\0\0\0\1\0\0\0", 8));
}

// Known values of FNV-1a-128.
TEST(FingerprintTest, KnownValues) {
  EXPECT_EQ(Fingerprint(""), "6c62272e07bb014262b821756295c58d");
  EXPECT_EQ(Fingerprint("a"), "d228cb696f1a8caf78912b704e4a8964");
}

}  // namespace
}  // namespace muster
