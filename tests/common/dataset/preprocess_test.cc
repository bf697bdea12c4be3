#include "common/dataset/preprocess.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/dataset/indexed_dataset.h"
#include "common/tokenizer/byte_tokenizer.h"
#include "tests/common/dataset/test_folder.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Documents(const std::string& prefix) {
  auto dataset = IndexedDataset::Open(prefix);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  std::vector<std::string> texts;
  for (int64_t s = 0; dataset.ok() && s < (*dataset)->num_sequences(); ++s) {
    const std::vector<int64_t> tokens = (*dataset)->Sequence(s);
    EXPECT_EQ(tokens.back(), ByteTokenizer::kEod);
    texts.push_back(ByteTokenizer().Decode(tokens));
  }
  return texts;
}

PreprocessOptions Options(const TestFolder& folder, TextFormat format) {
  return {.inputs = {folder / "in"}, .format = format, .output_prefix = folder / "out"};
}

TEST(PreprocessTest, JsonLines) {
  TestFolder folder;
  WriteFile(folder / "in",
            "{\"text\": \"one\"}\n\n{\"id\": 3, \"text\": \"zw\\u00f6i\"}\n{\"text\": \"\"}\n"
            "{\"text\": \"last\"}");
  auto summary = Preprocess(Options(folder, TextFormat::kJsonLines), ByteTokenizer());
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_THAT(Documents(folder / "out"), ElementsAre("one", "zw\xc3\xb6i", "last"));
  EXPECT_EQ(summary->num_documents, 3);
  EXPECT_EQ(summary->num_empty_documents, 1);
  EXPECT_EQ(summary->num_tokens, 4 + 6 + 5);
  EXPECT_EQ(summary->output_bytes, 30);
  EXPECT_EQ(std::filesystem::file_size(folder / "out.bin"), 30u);
}

TEST(PreprocessTest, Paragraphs) {
  TestFolder folder;
  WriteFile(folder / "in", "\n\na b\nc\n \t\n\nd\r\n\r\ne");
  auto summary = Preprocess(Options(folder, TextFormat::kParagraphs), ByteTokenizer());
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_THAT(Documents(folder / "out"), ElementsAre("a b\nc", "d", "e"));
}

TEST(PreprocessTest, WholeFilesInOrder) {
  TestFolder folder;
  WriteFile(folder / "in", "first\n\nstill first\n");
  WriteFile(folder / "in2", "second");
  PreprocessOptions options = Options(folder, TextFormat::kWholeFile);
  options.inputs.push_back(folder / "in2");
  ASSERT_TRUE(Preprocess(options, ByteTokenizer()).ok());
  EXPECT_THAT(Documents(folder / "out"), ElementsAre("first\n\nstill first\n", "second"));
}

TEST(PreprocessTest, BadLinesAreNamedAndLeaveNothing) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"text\": \"a\"}\n{\"text\": ", "in:2: not valid JSON"},
      {"[1]", "in:1: not a JSON object"},
      {"{\"txt\": \"a\"}", "has no \"text\""},
      {"{\"text\": 5}", "\"text\" is not a string"},
      {"{\"text\": \"\xff\"}", "in:1: not valid JSON"},
      {"\n\n", "holds no document"},
  };
  for (const auto& [input, message] : cases) {
    SCOPED_TRACE(message);
    TestFolder folder;
    WriteFile(folder / "in", input);
    auto summary = Preprocess(Options(folder, TextFormat::kJsonLines), ByteTokenizer());
    EXPECT_THAT(summary.status().ToString(), HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(folder / "out.idx"));
    EXPECT_FALSE(std::filesystem::exists(folder / "out.bin.partial"));
  }
}

TEST(PreprocessTest, MissingInputIsNotFound) {
  TestFolder folder;
  auto summary = Preprocess(Options(folder, TextFormat::kJsonLines), ByteTokenizer());
  EXPECT_EQ(summary.status().code(), absl::StatusCode::kNotFound);
}

TEST(PreprocessTest, ProgressEndsWithEverythingRead) {
  TestFolder folder;
  std::string input;
  for (int i = 0; i < 60000; ++i) input += "{\"text\": \"a line of some length, number N\"}\n";
  WriteFile(folder / "in", input);
  PreprocessOptions options = Options(folder, TextFormat::kJsonLines);
  std::vector<PreprocessProgress> reports;
  options.progress = [&](const PreprocessProgress& progress) { reports.push_back(progress); };
  ASSERT_TRUE(Preprocess(options, ByteTokenizer()).ok());
  ASSERT_GE(reports.size(), 3u);
  EXPECT_EQ(reports.back().bytes_read, static_cast<int64_t>(input.size()));
  EXPECT_EQ(reports.back().bytes_total, static_cast<int64_t>(input.size()));
  EXPECT_EQ(reports.back().num_documents, 60000);
  EXPECT_LT(reports.front().bytes_read, reports.back().bytes_read);
}

TEST(PreprocessTest, FormatNames) {
  EXPECT_EQ(*ParseTextFormat("jsonl"), TextFormat::kJsonLines);
  EXPECT_EQ(*ParseTextFormat("paragraphs"), TextFormat::kParagraphs);
  EXPECT_EQ(*ParseTextFormat("file"), TextFormat::kWholeFile);
  EXPECT_THAT(ParseTextFormat("csv").status().ToString(), HasSubstr("known: jsonl"));
}

}  // namespace
}  // namespace muster
