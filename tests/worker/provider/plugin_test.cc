// Plugins: what is loaded, what is refused, and that the example runs.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "worker/provider/plugin.h"
#include "worker/provider/plugin_api.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class PluginTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            absl::StrCat("muster_plugins_", ::getpid(), "_",
                         testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(root_ / "allowed");
    fs::create_directories(root_ / "elsewhere");
  }
  void TearDown() override { fs::remove_all(root_); }

  // Copies a built library into a folder of this test.
  std::string Install(const std::string& built, const std::string& folder) const {
    const fs::path to = root_ / folder / fs::path(built).filename();
    fs::copy_file(built, to);
    return to.string();
  }
  std::vector<std::string> Allowed() const { return {(root_ / "allowed").string()}; }
  absl::Status Load(const std::string& path) { return LoadPlugin(path, Allowed(), registry_); }

  fs::path root_;
  ProviderRegistry registry_;
};

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

// A model that returns a loss of 1 for every token.
class OnesModel final : public ModelChunk {
 public:
  const std::vector<ParameterPtr>& parameters() const override { return none_; }
  void SetTraining(bool) override {}
  at::Tensor Forward(const Batch& batch, const at::Tensor&) override {
    return at::ones(batch.tokens.sizes());
  }

 private:
  std::vector<ParameterPtr> none_;
};

class OneBatch final : public DataIterator {
 public:
  absl::StatusOr<Batch> Next() override {
    Batch batch;
    batch.tokens = at::zeros({2, 8}, at::kLong);
    batch.loss_mask = at::ones({2, 8});
    return batch;
  }
};

TEST_F(PluginTest, TheExampleRegistersAndRuns) {
  const absl::Status status = Load(Install(EXAMPLE_PLUGIN, "allowed"));
  ASSERT_TRUE(status.ok()) << status;
  auto step = registry_.forward_step("second_half");
  ASSERT_TRUE(step.ok()) << step.status();
  OneBatch data;
  OnesModel model;
  auto result = (*step)->Run(data, model, {});
  ASSERT_TRUE(result.ok()) << result.status();
  const LossResult loss = result->loss_function(result->output);
  EXPECT_EQ(loss.loss_sum.item<double>(), 8);  // 2 sequences, 4 tokens each
  EXPECT_EQ(loss.num_tokens.item<int64_t>(), 8);
}

TEST_F(PluginTest, ANameThatIsTakenFailsTheRegistration) {
  const std::string path = Install(EXAMPLE_PLUGIN, "allowed");
  ASSERT_TRUE(Load(path).ok());
  ExpectError(Load(path), absl::StatusCode::kInvalidArgument, "registered already");
}

TEST_F(PluginTest, OnlyAllowedFolders) {
  ExpectError(Load(Install(EXAMPLE_PLUGIN, "elsewhere")), absl::StatusCode::kPermissionDenied,
              "not in a folder that this worker's operator allowed");
  ExpectError(LoadPlugin(Install(EXAMPLE_PLUGIN, "allowed"), {}, registry_),
              absl::StatusCode::kPermissionDenied, "allows no plugins");
}

TEST_F(PluginTest, ASiblingWithTheSamePrefixIsNotAllowed) {
  fs::create_directories(root_ / "allowed_not");
  ExpectError(Load(Install(EXAMPLE_PLUGIN, "allowed_not")), absl::StatusCode::kPermissionDenied,
              "not in a folder");
}

TEST_F(PluginTest, LinksOutOfTheFolderAreRefused) {
  const std::string outside = Install(EXAMPLE_PLUGIN, "elsewhere");
  fs::create_symlink(outside, root_ / "allowed" / "link.so");
  ExpectError(Load((root_ / "allowed" / "link.so").string()), absl::StatusCode::kPermissionDenied,
              "elsewhere");
  fs::create_directory_symlink(root_ / "elsewhere", root_ / "allowed" / "folder");
  ExpectError(Load((root_ / "allowed" / "folder" / fs::path(outside).filename()).string()),
              absl::StatusCode::kPermissionDenied, "elsewhere");
}

TEST_F(PluginTest, DotDotAndRelativePathsAreRefused) {
  const std::string name = fs::path(Install(EXAMPLE_PLUGIN, "allowed")).filename().string();
  ExpectError(Load((root_ / "elsewhere/../allowed").string() + "/" + name),
              absl::StatusCode::kInvalidArgument, "'..'");
  ExpectError(Load("allowed/" + name), absl::StatusCode::kInvalidArgument, "absolute");
}

TEST_F(PluginTest, WhatEverybodyMayWriteIsRefused) {
  const std::string path = Install(EXAMPLE_PLUGIN, "allowed");
  fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
  ExpectError(Load(path), absl::StatusCode::kFailedPrecondition, "writable by everybody");
  fs::permissions(path, fs::perms::others_write, fs::perm_options::remove);
  fs::permissions(root_ / "allowed", fs::perms::others_write, fs::perm_options::add);
  ExpectError(Load(path), absl::StatusCode::kFailedPrecondition, "writable by everybody");
}

TEST_F(PluginTest, MissingFileFolderOrGarbageIsNamed) {
  ExpectError(Load((root_ / "allowed/none.so").string()), absl::StatusCode::kNotFound, "none.so");
  ExpectError(Load((root_ / "allowed/.").string()), absl::StatusCode::kPermissionDenied, "");
  const fs::path garbage = root_ / "allowed/garbage.so";
  std::ofstream(garbage) << "not an ELF file";
  ExpectError(Load(garbage.string()), absl::StatusCode::kFailedPrecondition, "cannot be loaded");
}

TEST_F(PluginTest, AnotherAbiVersionIsRefusedBeforeItRuns) {
  ExpectError(Load(Install(STALE_PLUGIN, "allowed")), absl::StatusCode::kFailedPrecondition,
              absl::StrCat("plugin ABI version 0, this trainer has ", kPluginAbiVersion));
}

TEST_F(PluginTest, ALibraryThatIsNoPluginIsRefused) {
  ExpectError(Load(Install(NOT_A_PLUGIN, "allowed")), absl::StatusCode::kFailedPrecondition,
              "not a Muster plugin");
}

TEST_F(PluginTest, AnExceptionInTheRegistrationIsAnError) {
  ExpectError(Load(Install(FAILING_PLUGIN, "allowed")), absl::StatusCode::kInvalidArgument,
              "no licence found");
}

}  // namespace
}  // namespace muster
