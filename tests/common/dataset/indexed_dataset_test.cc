#include "common/dataset/indexed_dataset.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "common/dataset/indexed_dataset_builder.h"
#include "common/files/file_ops.h"
#include "tests/common/dataset/test_folder.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// G10.1, 122 bytes.
const char kGoldenIndexHex[] =
    "4d4d494449445800000100000000000000"
    "08"
    "0400000000000000"
    "0500000000000000"
    "03000000050000000200000004000000"
    "0000000000000000060000000000000010000000000000001400000000000000"
    "00000000000000000100000000000000020000000000000003000000000000000400000000000000";

std::string GoldenIndex() { return absl::HexStringToBytes(kGoldenIndexHex); }

TEST(IndexedDatasetBuilderTest, WritesTheGoldenBytes) {
  TestFolder folder;
  WriteDocuments(folder / "golden", kGoldenDocuments);
  EXPECT_EQ(*ReadWholeFile(folder / "golden.idx"), GoldenIndex());
  std::string tokens;
  for (int token = 1; token <= 14; ++token) tokens += {static_cast<char>(token), '\0'};
  EXPECT_EQ(*ReadWholeFile(folder / "golden.bin"), tokens);
  EXPECT_FALSE(std::filesystem::exists(folder / "golden.bin.partial"));
  EXPECT_FALSE(std::filesystem::exists(folder / "golden.idx.partial"));
}

TEST(IndexedDatasetTest, ReadsTheGoldenBytes) {
  TestFolder folder;
  WriteFile(folder / "golden.idx", GoldenIndex());
  std::string tokens;
  for (int token = 1; token <= 14; ++token) tokens += {static_cast<char>(token), '\0'};
  WriteFile(folder / "golden.bin", tokens);
  auto dataset = IndexedDataset::Open(folder / "golden");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->token_type(), TokenType::kUint16);
  EXPECT_EQ((*dataset)->num_sequences(), 4);
  EXPECT_EQ((*dataset)->num_documents(), 4);
  EXPECT_EQ((*dataset)->num_tokens(), 14);
  for (int64_t s = 0; s < 4; ++s) {
    EXPECT_EQ((*dataset)->Sequence(s), kGoldenDocuments[static_cast<size_t>(s)]);
  }
  int64_t middle[2];
  (*dataset)->Read(1, 2, 2, middle);
  EXPECT_THAT(middle, ElementsAre(6, 7));
}

TEST(IndexedDatasetTest, EveryTokenTypeRoundTrips) {
  TestFolder folder;
  for (uint8_t code = 1; code <= 8; ++code) {
    const TokenType type = *TokenTypeFromCode(code);
    SCOPED_TRACE(std::string(TokenTypeName(type)));
    const std::vector<int64_t> tokens = {MinToken(type), 0, 1, MaxToken(type)};
    WriteDocuments(folder / "typed", {tokens, {}, {5}}, type);
    auto dataset = IndexedDataset::Open(folder / "typed");
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ((*dataset)->Sequence(0), tokens);
    EXPECT_EQ((*dataset)->Sequence(1).size(), 0u);
    EXPECT_THAT((*dataset)->Sequence(2), ElementsAre(5));
  }
}

TEST(IndexedDatasetTest, DocumentsMaySpanSequences) {
  TestFolder folder;
  auto builder = IndexedDatasetBuilder::Create(folder / "spans", TokenType::kInt32);
  ASSERT_TRUE(builder.ok());
  ASSERT_TRUE(builder->AddDocument({1, 2, 3, 4, 5}, {2, 3}).ok());
  ASSERT_TRUE(builder->AddDocument({6}).ok());
  EXPECT_EQ(builder->AddDocument({6}, {2}).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(builder->Finish().ok());
  auto dataset = IndexedDataset::Open(folder / "spans");
  ASSERT_TRUE(dataset.ok());
  EXPECT_EQ((*dataset)->num_documents(), 2);
  EXPECT_EQ((*dataset)->num_sequences(), 3);
  EXPECT_EQ((*dataset)->document_boundary(1), 2);
  EXPECT_THAT((*dataset)->Sequence(1), ElementsAre(3, 4, 5));
}

TEST(IndexedDatasetTest, MergingShiftsBoundaries) {
  TestFolder folder;
  WriteDocuments(folder / "a", {{1, 2}, {3}});
  WriteDocuments(folder / "b", {{4}, {5, 6}});
  auto builder = IndexedDatasetBuilder::Create(folder / "ab", TokenType::kUint16);
  for (const char* name : {"a", "b"}) {
    ASSERT_TRUE(builder->AddDataset(**IndexedDataset::Open(folder / name)).ok());
  }
  ASSERT_TRUE(builder->Finish().ok());
  WriteDocuments(folder / "whole", {{1, 2}, {3}, {4}, {5, 6}});
  EXPECT_EQ(*ReadWholeFile(folder / "ab.idx"), *ReadWholeFile(folder / "whole.idx"));
  EXPECT_EQ(*ReadWholeFile(folder / "ab.bin"), *ReadWholeFile(folder / "whole.bin"));

  WriteDocuments(folder / "wide", {{1}}, TokenType::kInt32);
  auto narrow = IndexedDatasetBuilder::Create(folder / "mixed", TokenType::kUint16);
  const absl::Status status = narrow->AddDataset(**IndexedDataset::Open(folder / "wide"));
  EXPECT_THAT(status.ToString(), HasSubstr("int32"));
}

TEST(IndexedDatasetBuilderTest, TokensThatDoNotFitAreRefused) {
  TestFolder folder;
  auto builder = IndexedDatasetBuilder::Create(folder / "big", TokenType::kUint16);
  const absl::Status status = builder->AddDocument({1, 70000});
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.ToString(), HasSubstr("70000 does not fit uint16"));
}

TEST(IndexedDatasetBuilderTest, WithoutFinishNothingRemains) {
  TestFolder folder;
  { ASSERT_TRUE(IndexedDatasetBuilder::Create(folder / "x", TokenType::kUint16).ok()); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

struct DamageCase {
  const char* name;
  std::function<void(std::string& idx, std::string& bin)> damage;
  const char* message;
};

TEST(IndexedDatasetTest, DamageIsNamed) {
  const DamageCase cases[] = {
      {"magic", [](auto& idx, auto&) { idx[0] = 'X'; }, "bad magic"},
      {"empty", [](auto& idx, auto&) { idx.clear(); }, "bad magic"},
      {"version", [](auto& idx, auto&) { idx[9] = 2; }, "version 2"},
      {"dtype", [](auto& idx, auto&) { idx[17] = 9; }, "dtype code 9"},
      {"header cut", [](auto& idx, auto&) { idx.resize(20); }, "truncated"},
      {"tables cut", [](auto& idx, auto&) { idx.resize(100); }, "truncated"},
      {"huge count", [](auto& idx, auto&) { idx[25] = 0x7f; }, "truncated"},
      {"one byte more", [](auto& idx, auto&) { idx.push_back(0); }, "its size is 123"},
      {"last boundary", [](auto& idx, auto&) { idx[114] = 3; }, "boundary mismatch"},
      {"first boundary", [](auto& idx, auto&) { idx[82] = 1; }, "boundary mismatch"},
      {"boundaries fall", [](auto& idx, auto&) { idx[98] = 0; }, "boundary mismatch"},
      {"negative length", [](auto& idx, auto&) { idx[37] = '\x80'; }, "sequence 0 has length"},
      {"bin cut", [](auto&, auto& bin) { bin.resize(20); }, "sequence 3"},
      {"offset", [](auto& idx, auto&) { idx[57] = 0x7f; }, "lies outside"},
  };
  TestFolder folder;
  WriteDocuments(folder / "good", kGoldenDocuments);
  for (const DamageCase& row : cases) {
    SCOPED_TRACE(row.name);
    std::string idx = *ReadWholeFile(folder / "good.idx");
    std::string bin = *ReadWholeFile(folder / "good.bin");
    row.damage(idx, bin);
    WriteFile(folder / "bad.idx", idx);
    WriteFile(folder / "bad.bin", bin);
    auto dataset = IndexedDataset::Open(folder / "bad");
    EXPECT_EQ(dataset.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(dataset.status().ToString(), HasSubstr(row.message));
    EXPECT_THAT(dataset.status().ToString(), HasSubstr("bad.idx"));
  }
}

TEST(IndexedDatasetTest, MissingFilesAreNotFound) {
  TestFolder folder;
  EXPECT_EQ(IndexedDataset::Open(folder / "no").status().code(), absl::StatusCode::kNotFound);
  WriteDocuments(folder / "half", {{1}});
  std::filesystem::remove(folder / "half.bin");
  auto half = IndexedDataset::Open(folder / "half");
  EXPECT_EQ(half.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(half.status().ToString(), HasSubstr("half.bin"));
}

TEST(TokenTypeTest, VocabularyDecidesTheType) {
  EXPECT_EQ(TokenTypeForVocabulary(65499), TokenType::kUint16);
  EXPECT_EQ(TokenTypeForVocabulary(65500), TokenType::kInt32);
  EXPECT_EQ(TokenTypeForVocabulary(std::nullopt), TokenType::kInt32);
}

}  // namespace
}  // namespace muster
