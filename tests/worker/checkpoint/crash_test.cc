// A crash or a failure at every file operation of a save, in turn: what loads afterwards is whole
// and is either the old checkpoint or the new one; the next save works.
#include <filesystem>

#include <ATen/ATen.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/ckpt/layout.h"
#include "common/ckpt/verify.h"
#include "tests/worker/checkpoint/checkpoint_test_util.h"
#include "tests/worker/checkpoint/crashing_file_ops.h"

namespace muster {
namespace {

using ::testing::IsEmpty;

struct Scenario {
  const char* name;
  int64_t old_iteration, new_iteration;
  std::optional<int64_t> keep_last;
};
const Scenario kScenarios[] = {
    {"next", 100, 200, std::nullopt},
    {"next, the old one deleted", 100, 200, 1},
    {"the same iteration again", 100, 100, std::nullopt},
    {"back to an older one", 200, 100, 1},
};

// Without `files`: an undisturbed save (real fsyncs would take most of the test's time).
absl::Status Save(const std::string& root, const Scenario& scenario, int64_t iteration, float value,
                  int64_t epoch, FileOps* files) {
  CrashingFileOps undisturbed(CrashingFileOps::Mode::kCrash, -1);
  if (files == nullptr) files = &undisturbed;
  return SaveCheckpoint(
             {.root = root, .epoch = epoch, .keep_last = scenario.keep_last, .files = files},
             StateOf(iteration, at::full({8}, value)), *MakeSelfCommunicator("world", 0))
      .status();
}

// Loads and checks; returns the value that all elements have.
float LoadWhole(const std::string& root, int64_t& iteration) {
  at::Tensor weight = at::zeros({8});
  std::vector<NamedTensor> into = {{.name = "w", .data = weight}};
  auto loaded = LoadCheckpoint({.root = root}, into, *MakeSelfCommunicator("world", 0));
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok()) return -1;
  auto verified = VerifyCheckpoint(loaded->path);
  EXPECT_TRUE(verified.ok()) << verified.status();
  if (verified.ok()) {
    EXPECT_THAT(verified->problems, IsEmpty());
  }
  EXPECT_TRUE(at::equal(weight, weight[0].expand({8})));
  iteration = loaded->iteration;
  return weight[0].item<float>();
}

// Returns false when the save ended before its operation number `at`.
bool TryOne(const Scenario& scenario, CrashingFileOps::Mode mode,
            std::optional<uint32_t> lose_unsynced, int at) {
  TestRoot root;
  EXPECT_TRUE(Save(root.path(), scenario, scenario.old_iteration, 1.0f, 1, nullptr).ok());
  CrashingFileOps files(mode, at);
  const absl::Status status = Save(root.path(), scenario, scenario.new_iteration, 2.0f, 1, &files);
  if (!files.reached()) {
    EXPECT_TRUE(status.ok()) << status;
    return false;
  }
  if (lose_unsynced.has_value()) files.LoseUnsynced(*lose_unsynced);

  int64_t iteration = 0;
  const float value = LoadWhole(root.path(), iteration);
  EXPECT_EQ(iteration, value == 1.0f ? scenario.old_iteration : scenario.new_iteration);
  EXPECT_TRUE(value == 1.0f || value == 2.0f);
  // A save that was reported done stays, whatever the disk loses.
  if (status.ok()) {
    EXPECT_EQ(value, 2.0f);
  }

  // The next attempt (a new epoch after a crash) goes through and cleans up.
  EXPECT_TRUE(Save(root.path(), scenario, scenario.new_iteration, 3.0f, 2, nullptr).ok());
  EXPECT_EQ(LoadWhole(root.path(), iteration), 3.0f);
  EXPECT_EQ(iteration, scenario.new_iteration);
  for (const auto& entry : std::filesystem::directory_iterator(root.path())) {
    const std::string name = entry.path().filename().string();
    EXPECT_FALSE(IsAsideFolder(name)) << name;
    EXPECT_EQ(name.find(".replaced"), std::string::npos) << name;
  }
  return true;
}

// lose_unsynced: a seed; nullopt: everything reached the disk.
void TryAll(CrashingFileOps::Mode mode, std::optional<uint32_t> lose_unsynced) {
  for (const Scenario& scenario : kScenarios) {
    int at = 0;
    while (true) {
      SCOPED_TRACE(std::string(scenario.name) + ", operation " + std::to_string(at));
      if (!TryOne(scenario, mode, lose_unsynced, at)) break;
      if (::testing::Test::HasFailure()) return;
      ++at;
    }
    EXPECT_GT(at, 25) << "a save has more operations than that";
  }
}

TEST(CheckpointCrashTest, CrashWithEverythingOnDisk) {
  TryAll(CrashingFileOps::Mode::kCrash, std::nullopt);
}

TEST(CheckpointCrashTest, CrashThatLosesAllThatWasNotSynced) {
  TryAll(CrashingFileOps::Mode::kCrash, 0);
}

TEST(CheckpointCrashTest, CrashThatLosesSomeOfWhatWasNotSynced) {
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    TryAll(CrashingFileOps::Mode::kCrash, seed);
  }
}

TEST(CheckpointCrashTest, OneFailedOperation) {
  TryAll(CrashingFileOps::Mode::kFailOnce, std::nullopt);
}

}  // namespace
}  // namespace muster
