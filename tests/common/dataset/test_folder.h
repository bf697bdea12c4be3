// A temporary folder of a test, removed at the end; the golden documents of the reference.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/dataset/indexed_dataset_builder.h"

namespace muster {

class TestFolder {
 public:
  TestFolder() {
    std::string name = ::testing::TempDir() + "/muster_data_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline void WriteDocuments(const std::string& prefix,
                           const std::vector<std::vector<int64_t>>& documents,
                           TokenType type = TokenType::kUint16) {
  auto builder = IndexedDatasetBuilder::Create(prefix, type);
  ASSERT_TRUE(builder.ok()) << builder.status();
  for (const auto& document : documents) ASSERT_TRUE(builder->AddDocument(document).ok());
  ASSERT_TRUE(builder->Finish().ok());
}

// The documents of golden table G10.1.
inline const std::vector<std::vector<int64_t>> kGoldenDocuments = {
    {1, 2, 3}, {4, 5, 6, 7, 8}, {9, 10}, {11, 12, 13, 14}};

// The same in memory.
class VectorSource final : public TokenSource {
 public:
  explicit VectorSource(std::vector<std::vector<int64_t>> documents)
      : documents_(std::move(documents)) {}
  int64_t num_sequences() const override { return static_cast<int64_t>(documents_.size()); }
  int64_t sequence_length(int64_t sequence) const override {
    return static_cast<int64_t>(documents_[static_cast<size_t>(sequence)].size());
  }
  void Read(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens) const override {
    const auto& document = documents_[static_cast<size_t>(sequence)];
    std::copy_n(document.begin() + offset, count, tokens);
  }

 private:
  const std::vector<std::vector<int64_t>> documents_;
};

}  // namespace muster
