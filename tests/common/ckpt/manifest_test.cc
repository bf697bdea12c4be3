#include "common/ckpt/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

// A (4, 2) fp32 tensor in two halves, the second of them as two ranges.
Manifest Example() {
  Manifest manifest{.muster_version = "0.1.0", .iteration = 100, .epoch = 3, .world_size = 2};
  ManifestTensor& tensor = manifest.content.tensors["w"];
  tensor.global_shape = {4, 2};
  tensor.slices.push_back({WholeBox({0, 0}, {2, 2}), "s0", 8, 24, 1});
  SliceBox range = WholeBox({2, 0}, {2, 2});
  range.flat_end = 3;
  tensor.slices.push_back({range, "s0", 24, 36, 2});
  range.flat_begin = 3;
  range.flat_end = 4;
  tensor.slices.push_back({range, "s1", 8, 12, 3});
  manifest.content.files["s0"] = {36, 8, 4};
  manifest.content.files["s1"] = {12, 8, 5};
  return manifest;
}

TEST(ManifestTest, RoundTrips) {
  const Manifest manifest = Example();
  ASSERT_TRUE(CheckManifest(manifest).ok()) << CheckManifest(manifest);
  const std::string text = ManifestToJson(manifest);
  auto read = ManifestFromJson(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ManifestToJson(*read), text);
  EXPECT_EQ(read->iteration, 100);
  EXPECT_EQ(read->epoch, 3);
  EXPECT_EQ(read->world_size, 2);
  EXPECT_EQ(read->content.tensors.at("w").slices[2].box.flat_begin, 3);
}

TEST(ManifestTest, AnyFlippedBitAndAnyTruncationIsFound) {
  const std::string text = ManifestToJson(Example());
  for (size_t i = 0; i < text.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_EQ(ManifestFromJson(damaged).status().code(), absl::StatusCode::kDataLoss) << i;
    }
    EXPECT_EQ(ManifestFromJson(text.substr(0, i)).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(ManifestTest, NewerVersionIsRefused) {
  Manifest manifest = Example();
  manifest.format_version = 2;
  auto read = ManifestFromJson(ManifestToJson(manifest));
  EXPECT_EQ(read.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(read.status().ToString(), HasSubstr("version 2"));
}

TEST(ManifestTest, BadSlicesAreNamed) {
  struct Row {
    const char* message;
    std::function<void(ManifestTensor&)> damage;
  };
  const Row rows[] = {
      {"its slices hold 7", [](auto& t) { t.slices.pop_back(); }},
      {"its slices hold 12", [](auto& t) { t.slices.push_back(t.slices[0]); }},
      {"lies outside the tensor", [](auto& t) { t.slices[0].box.offset[0] = 3; }},
      {"another number of dims", [](auto& t) { t.slices[0].box.offset.pop_back(); }},
      {"range lies outside", [](auto& t) { t.slices[2].box.flat_end = 5; }},
      {"is not listed", [](auto& t) { t.slices[0].file = "s9"; }},
      {"do not fit", [](auto& t) { t.slices[0].end -= 4; }},
      {"do not fit", [](auto& t) { t.slices[0].begin -= 4; }},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.message);
    Manifest manifest = Example();
    row.damage(manifest.content.tensors["w"]);
    const absl::Status status = CheckManifest(manifest);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.ToString(), HasSubstr(row.message));
    EXPECT_THAT(status.ToString(), HasSubstr("\"w\""));
  }
}

TEST(ManifestTest, PartsOfRanksMerge) {
  ManifestPart first, second, whole;
  first.tensors["w"] = {DType::kF32, {2}, {{WholeBox({0}, {1}), "s0", 8, 12, 0}}};
  first.files["s0"] = {12, 8, 0};
  second.tensors["w"] = {DType::kF32, {2}, {{WholeBox({1}, {1}), "s1", 8, 12, 0}}};
  second.files["s1"] = {12, 8, 0};
  auto sent = PartFromJson(PartToJson(second));
  ASSERT_TRUE(sent.ok()) << sent.status();
  ASSERT_TRUE(MergePart(first, whole).ok());
  ASSERT_TRUE(MergePart(*sent, whole).ok());
  EXPECT_TRUE(CheckManifest({.content = whole}).ok());
  EXPECT_THAT(MergePart(*sent, whole).ToString(), HasSubstr("two ranks wrote s1"));
  second.tensors["w"].global_shape = {3};
  EXPECT_THAT(MergePart(second, whole).ToString(), HasSubstr("disagree on tensor \"w\""));
}

}  // namespace
}  // namespace muster
