#include "cli/absolute_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/spec_paths.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

LoadedSpec Load(const std::string& json) {
  LoadedSpec loaded{.json = json};
  loaded.spec = ParseJobSpec(json).spec;
  return loaded;
}

TEST(AbsolutePathsTest, EveryRelativePathOfTheSpecGetsTheFolder) {
  LoadedSpec loaded = Load(R"({
    "plugin": "lib/mine.so",
    "data": {"data_path": ["0.7", "a", "0.3", "/abs/b"], "train_data_path": ["t"],
             "valid_data_path": ["./v", "../w"], "test_data_path": ["x"], "data_cache_path": "c",
             "tokenizer_model": "tok.json"},
    "checkpoint": {"save": "out", "load": "in", "pretrained_checkpoint": "pre",
                   "exit_on_missing_checkpoint": true}})");
  ASSERT_TRUE(MakePathsAbsolute("/home/me", &loaded).ok());
  const JobSpec& spec = loaded.spec;
  EXPECT_EQ(spec.plugin, "/home/me/lib/mine.so");
  EXPECT_THAT(spec.data.data_path, ElementsAre("0.7", "/home/me/a", "0.3", "/abs/b"));
  EXPECT_THAT(spec.data.valid_data_path, ElementsAre("/home/me/./v", "/home/me/../w"));
  EXPECT_EQ(spec.checkpoint.load, "/home/me/in");
  // The spec's own list of its paths (common/spec) has none that was forgotten.
  const std::vector<SpecPath> paths = SpecPaths(spec);
  EXPECT_EQ(paths.size(), 1u + 2 * (2 + 1 + 2 + 1) + 2 + 3);
  for (const SpecPath& path : paths) EXPECT_THAT(path.path, StartsWith("/")) << path.field;
  // What is sent is the text.
  EXPECT_EQ(ParseJobSpec(loaded.json).spec.checkpoint.save, "/home/me/out");
}

TEST(AbsolutePathsTest, TheRestOfTheTextStaysAsItIs) {
  const std::string json = R"({"optimizer": {"lr": 1.50e-4},   "checkpoint": {"save": "/out"}})";
  LoadedSpec loaded = Load(json);
  ASSERT_TRUE(MakePathsAbsolute("/home/me", &loaded).ok());
  EXPECT_EQ(loaded.json, json);
  loaded = Load(R"({"optimizer": {"lr": 1.50e-4}, "checkpoint": {"save": "a \"b\" = c"}})");
  ASSERT_TRUE(MakePathsAbsolute("/home/me", &loaded).ok());
  EXPECT_THAT(loaded.json, HasSubstr("1.50e-4"));
  EXPECT_EQ(loaded.spec.checkpoint.save, "/home/me/a \"b\" = c");
}

}  // namespace
}  // namespace muster
