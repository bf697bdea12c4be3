#include <stdlib.h>

#include <atomic>
#include <filesystem>

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/common/dataset/test_folder.h"
#include "worker/data/build_datasets.h"
#include "worker/data/data_iterator.h"
#include "worker/data/gpt_dataset.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> Values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

// Sample i is the number i.
class CountingDataset final : public Dataset {
 public:
  explicit CountingDataset(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  absl::StatusOr<Batch> Collate(const std::vector<int64_t>& indices) const override {
    return Batch{.tokens = at::tensor(indices, at::kLong)};
  }

 private:
  const int64_t size_;
};

std::vector<std::vector<int64_t>> Read(const DataIteratorOptions& options, int64_t total,
                                       int count) {
  auto iterator = MakeDataIterator(std::make_shared<CountingDataset>(total), options);
  EXPECT_TRUE(iterator.ok()) << iterator.status();
  std::vector<std::vector<int64_t>> batches;
  for (int i = 0; i < count; ++i) {
    auto batch = (*iterator)->Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    batches.push_back(Values(batch->tokens));
  }
  return batches;
}

DataIteratorOptions Golden(const char* type, int64_t dp_rank, int64_t consumed,
                           bool sharding = true) {
  return {.dataloader_type = type,
          .micro_batch_size = 2,
          .consumed_samples = consumed,
          .dp_rank = dp_rank,
          .dp_size = 2,
          .data_sharding = sharding};
}

using Batches = std::vector<std::vector<int64_t>>;

// G10.5: total 11, micro batch 2, dp 2.
TEST(DataIteratorTest, GoldenSingle) {
  EXPECT_EQ(Read(Golden("single", 0, 4), 11, 1), (Batches{{4, 5}}));
  EXPECT_EQ(Read(Golden("single", 1, 4), 11, 1), (Batches{{6, 7}}));
}

TEST(DataIteratorTest, GoldenCyclicSharded) {
  EXPECT_EQ(Read(Golden("cyclic", 0, 0), 11, 4), (Batches{{0, 1}, {3, 2}, {1, 3}, {2, 0}}));
  EXPECT_EQ(Read(Golden("cyclic", 1, 0), 11, 4), (Batches{{4, 5}, {7, 6}, {5, 7}, {6, 4}}));
  EXPECT_EQ(Read(Golden("cyclic", 0, 4), 11, 1), (Batches{{3, 2}}));
  EXPECT_EQ(Read(Golden("cyclic", 1, 4), 11, 1), (Batches{{7, 6}}));
  EXPECT_EQ(Read(Golden("cyclic", 0, 8), 11, 2), (Batches{{1, 3}, {2, 0}}));
}

TEST(DataIteratorTest, GoldenCyclicNotSharded) {
  EXPECT_EQ(Read(Golden("cyclic", 0, 0, false), 11, 4), (Batches{{4, 7}, {3, 0}, {5, 1}, {0, 9}}));
  EXPECT_EQ(Read(Golden("cyclic", 1, 0, false), 11, 4), (Batches{{1, 5}, {9, 8}, {6, 2}, {8, 3}}));
}

TEST(DataIteratorTest, PrefetchChangesNothing) {
  for (const char* type : {"single", "cyclic", "full_validation"}) {
    DataIteratorOptions options{.dataloader_type = type};
    const Batches ahead = Read(options, 50, 40);
    options.prefetch = false;
    EXPECT_EQ(Read(options, 50, 40), ahead) << type;
  }
}

TEST(DataIteratorTest, EndOfDataStaysTheEnd) {
  for (const bool prefetch : {true, false}) {
    auto iterator = MakeDataIterator(std::make_shared<CountingDataset>(3),
                                     {.micro_batch_size = 2, .prefetch = prefetch});
    ASSERT_TRUE(iterator.ok());
    EXPECT_TRUE((*iterator)->Next().ok());
    for (int i = 0; i < 2; ++i) {
      const auto end = (*iterator)->Next();
      EXPECT_EQ(end.status().code(), absl::StatusCode::kOutOfRange);
      EXPECT_THAT(end.status().ToString(), HasSubstr("end of data"));
    }
  }
}

TEST(DataIteratorTest, UnknownLoaderIsNamed) {
  auto iterator =
      MakeDataIterator(std::make_shared<CountingDataset>(3), {.dataloader_type = "random"});
  EXPECT_THAT(iterator.status().ToString(), HasSubstr("data.dataloader_type=\"random\""));
}

// A spec over the golden documents (tokens 1 to 14), s = 4, everything in the train split.
JobSpec GoldenSpec(const std::string& prefix) {
  JobSpec spec;
  spec.model.seq_length = 4;
  spec.data.data_path = {prefix};
  spec.data.split = "1";
  return spec;
}

ResolvedSpec Sizes(int64_t vocab_size) {
  ResolvedSpec sizes;
  sizes.vocab_size = vocab_size;
  return sizes;
}

TEST(BuildDatasetsTest, GoldenSamplesAsBatches) {
  TestFolder folder;
  WriteDocuments(folder / "golden", kGoldenDocuments);
  const JobSpec spec = GoldenSpec(folder / "golden");
  const ResolvedSpec sizes = Sizes(257);
  auto datasets = BuildGptDatasets({.spec = spec, .sizes = sizes, .train_samples = 6});
  ASSERT_TRUE(datasets.ok()) << datasets.status();
  EXPECT_EQ(datasets->valid, nullptr);
  ASSERT_EQ(datasets->train->size(), 6);
  auto batch = datasets->train->Collate({0, 1, 5});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->tokens.sizes(), (at::IntArrayRef{3, 4}));
  EXPECT_THAT(Values(batch->tokens), ElementsAre(9, 10, 4, 5, 5, 6, 7, 8, 6, 7, 8, 9));
  EXPECT_THAT(Values(batch->labels), ElementsAre(10, 4, 5, 6, 6, 7, 8, 11, 7, 8, 9, 10));
  EXPECT_THAT(Values(batch->position_ids[1]), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(batch->loss_mask.scalar_type(), at::kFloat);
  EXPECT_EQ(batch->loss_mask.sum().item<float>(), 12.0f);
  EXPECT_FALSE(batch->attention_mask.defined());
  EXPECT_EQ(datasets->train->Collate({6}).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(datasets->train->Collate({-1}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(BuildDatasetsTest, TokensOutsideTheVocabularyAreNamed) {
  TestFolder folder;
  WriteDocuments(folder / "golden", kGoldenDocuments);
  const JobSpec spec = GoldenSpec(folder / "golden");
  const ResolvedSpec sizes = Sizes(14);
  auto datasets = BuildGptDatasets({.spec = spec, .sizes = sizes, .train_samples = 6});
  ASSERT_TRUE(datasets.ok());
  auto batch = datasets->train->Collate({4});
  EXPECT_EQ(batch.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(batch.status().ToString(), HasSubstr("token 14"));
}

TEST(BuildDatasetsTest, ResetAttentionMaskMakesTheMask) {
  TestFolder folder;
  WriteDocuments(folder / "eod", {{65, 66, 256, 67, 68}});
  JobSpec spec = GoldenSpec(folder / "eod");
  spec.data.reset_attention_mask = true;
  spec.data.eod_mask_loss = true;
  spec.data.reset_position_ids = true;
  const ResolvedSpec sizes = Sizes(257);
  auto datasets = BuildGptDatasets({.spec = spec, .sizes = sizes});
  ASSERT_TRUE(datasets.ok()) << datasets.status();
  auto batch = datasets->train->Collate({0});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->attention_mask.sizes(), (at::IntArrayRef{1, 1, 4, 4}));
  EXPECT_THAT(Values(batch->attention_mask[0][0][3]), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(Values(batch->attention_mask[0][0][1]), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(Values(batch->loss_mask), ElementsAre(1, 1, 0, 1));
  EXPECT_THAT(Values(batch->position_ids), ElementsAre(0, 1, 2, 0));
}

TEST(BuildDatasetsTest, NoPathMeansMockData) {
  JobSpec spec;
  spec.model.seq_length = 64;
  const ResolvedSpec sizes = Sizes(100);
  auto datasets = BuildGptDatasets(
      {.spec = spec, .sizes = sizes, .train_samples = 8, .valid_samples = 8, .test_samples = 8});
  ASSERT_TRUE(datasets.ok()) << datasets.status();
  for (const auto& dataset : {datasets->train, datasets->valid, datasets->test}) {
    ASSERT_NE(dataset, nullptr);
    auto batch = dataset->Collate({0, 7});
    ASSERT_TRUE(batch.ok()) << batch.status();
    // Next token is the next number, but around an end of document (99).
    const at::Tensor counts = (batch->tokens + 1).remainder(100).eq(batch->labels);
    EXPECT_GT(counts.sum().item<int64_t>(), 100);
  }
}

TEST(BuildDatasetsTest, ErrorsNameTheField) {
  JobSpec spec = GoldenSpec("/nowhere/corpus");
  const ResolvedSpec sizes = Sizes(257);
  EXPECT_THAT(BuildGptDatasets({.spec = spec, .sizes = sizes}).status().ToString(),
              HasSubstr("/nowhere/corpus.idx"));
  spec.data.tokenizer_type = "words";
  EXPECT_THAT(BuildGptDatasets({.spec = spec, .sizes = sizes}).status().ToString(),
              HasSubstr("tokenizer_type=\"words\""));
}

}  // namespace
}  // namespace muster
