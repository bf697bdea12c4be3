#include "common/ckpt/safetensors.h"

#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/ckpt/crc32c.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "/muster_safetensors_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path() const { return folder_ + "/a.safetensors"; }
  void WriteBytes(const std::string& bytes) { std::ofstream(Path(), std::ios::binary) << bytes; }
  // A file with this header text, padded as given, and `data_bytes` zeros.
  void WriteHeader(const std::string& json, size_t data_bytes) {
    const uint64_t size = json.size();
    std::string bytes(reinterpret_cast<const char*>(&size), 8);
    WriteBytes(bytes + json + std::string(data_bytes, '\0'));
  }

  std::string folder_;
};

TEST_F(SafetensorsTest, WritesTheFormat) {
  auto layout = PlanSafetensors({{"half", DType::kBF16, {3}}, {"w", DType::kF32, {1, 2}}},
                                {{"format", "pt"}});
  ASSERT_TRUE(layout.ok()) << layout.status();
  const std::vector<std::string> data = {"01234567", "abcdef"};
  ASSERT_TRUE(
      WriteSafetensors(FileOps::Real(), Path(), *layout,
                       [&](size_t i) -> absl::StatusOr<absl::string_view> { return data[i]; })
          .ok());
  const std::string bytes = *ReadWholeFile(Path());
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), 8);
  EXPECT_EQ(size % 8, 0u);
  // Larger elements first; the rest of the header is spaces.
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("half":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]}})";
  EXPECT_EQ(bytes.substr(8, json.size()), json);
  EXPECT_EQ(bytes.substr(8 + json.size(), size - json.size()),
            std::string(size - json.size(), ' '));
  EXPECT_EQ(bytes.substr(8 + size), "01234567abcdef");
  EXPECT_EQ(layout->places[0].crc32c, Crc32c("01234567"));
  EXPECT_EQ(layout->file_bytes, static_cast<int64_t>(bytes.size()));
}

TEST_F(SafetensorsTest, EveryDtypeRoundTripsAligned) {
  std::vector<TensorInfo> infos;
  for (const char* name : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "I16", "U16", "F16", "BF16",
                           "I32", "U32", "F32", "I64", "U64", "F64"}) {
    const DType dtype = *DTypeFromName(name);
    EXPECT_EQ(DTypeName(dtype), name);
    infos.push_back({name, dtype, {3}});
    infos.push_back({absl::StrCat(name, "_scalar"), dtype, {}});
    infos.push_back({absl::StrCat(name, "_empty"), dtype, {0, 4}});
  }
  auto layout = PlanSafetensors(infos, {});
  ASSERT_TRUE(layout.ok());
  const auto bytes_of = [&](size_t i) {
    return std::string(static_cast<size_t>(NumBytes(layout->places[i].info)),
                       static_cast<char>('a' + i % 26));
  };
  std::string held;
  ASSERT_TRUE(WriteSafetensors(FileOps::Real(), Path(), *layout,
                               [&](size_t i) -> absl::StatusOr<absl::string_view> {
                                 held = bytes_of(i);
                                 return held;
                               })
                  .ok());
  auto file = SafetensorsFile::Open(Path());
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->places().size(), infos.size());
  for (size_t i = 0; i < infos.size(); ++i) {
    const TensorPlace* place = file->Find(layout->places[i].info.name);
    ASSERT_NE(place, nullptr);
    EXPECT_EQ(place->info.dtype, layout->places[i].info.dtype);
    EXPECT_EQ(place->info.shape, layout->places[i].info.shape);
    EXPECT_EQ(file->BytesOf(*place), bytes_of(i));
    EXPECT_EQ(place->begin % DTypeSize(place->info.dtype), 0) << place->info.name;
  }
  EXPECT_EQ(file->Find("nothing"), nullptr);
}

TEST_F(SafetensorsTest, NoTensorsIsAFileToo) {
  auto layout = PlanSafetensors({}, {});
  ASSERT_TRUE(WriteSafetensors(FileOps::Real(), Path(), *layout, [](size_t) {
                return absl::StatusOr<absl::string_view>("");
              }).ok());
  EXPECT_TRUE(SafetensorsFile::Open(Path()).ok());
}

TEST_F(SafetensorsTest, PlanRefusesBadTensors) {
  EXPECT_FALSE(PlanSafetensors({{"a", DType::kF32, {}}, {"a", DType::kF32, {}}}, {}).ok());
  EXPECT_FALSE(PlanSafetensors({{"__metadata__", DType::kF32, {}}}, {}).ok());
  EXPECT_FALSE(PlanSafetensors({{"a", DType::kF32, {-1}}}, {}).ok());
  EXPECT_FALSE(PlanSafetensors({{"a", DType::kF32, {int64_t{1} << 62, 8}}}, {}).ok());
  EXPECT_FALSE(PlanSafetensors({{"\xff", DType::kF32, {1}}}, {}).ok());
}

TEST_F(SafetensorsTest, DamageIsNamed) {
  struct Row {
    std::string json;
    size_t data_bytes;
    const char* message;
  };
  const Row rows[] = {
      {"[]", 0, "not a JSON object"},
      {"{", 0, "not a JSON object"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "lacks dtype"},
      {R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype F99"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "do not give"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "do not give"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,0]}})", 0,
       "do not give"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 2, "truncated"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "tensors end"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "a gap"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4, "an overlap"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", 4,
       "lacks dtype, shape or data_offsets"},
      {R"({"__metadata__":{"a":1}})", 0, "not a string"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.json);
    WriteHeader(row.json, row.data_bytes);
    auto file = SafetensorsFile::Open(Path());
    EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(file.status().ToString(), HasSubstr(row.message));
    EXPECT_THAT(file.status().ToString(), HasSubstr(Path()));
  }
  WriteBytes("short");
  EXPECT_THAT(SafetensorsFile::Open(Path()).status().ToString(), HasSubstr("truncated"));
  WriteBytes(std::string(8, '\x7f'));
  EXPECT_THAT(SafetensorsFile::Open(Path()).status().ToString(), HasSubstr("header claims"));
  EXPECT_EQ(SafetensorsFile::Open(Path() + "x").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster
