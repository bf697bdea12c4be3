#include "common/preflight/spec_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace muster {
namespace {

using ::testing::HasSubstr;

class SpecFilesTest : public ::testing::Test {
 protected:
  SpecFilesTest() {
    char folder[] = "/tmp/muster-spec-files-XXXXXX";
    folder_ = mkdtemp(folder);
    for (const char* name : {"a.idx", "a.bin", "b.idx", "tokenizer"}) {
      std::ofstream(folder_ / name) << "x";
    }
  }
  ~SpecFilesTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) { return (folder_ / name).string(); }
  // The fields of the problems.
  std::vector<std::string> Faults(const JobSpec& spec) {
    std::vector<std::string> fields;
    for (const SpecProblem& problem : CheckSpecFiles(spec)) {
      fields.push_back(problem.field);
      messages_ += problem.message + "\n";
    }
    return fields;
  }

  std::filesystem::path folder_;
  std::string messages_;
};

TEST_F(SpecFilesTest, WhatIsThereIsGood) {
  JobSpec spec;
  spec.data.data_path = {Path("a")};
  spec.data.train_data_path = {"0.5", Path("a"), "0.5", Path("a")};
  spec.data.tokenizer_model = Path("tokenizer");
  spec.checkpoint.save = Path("new/checkpoints");
  spec.checkpoint.load = Path("not there yet");
  spec.checkpoint.pretrained_checkpoint = folder_.string();
  EXPECT_THAT(Faults(spec), ::testing::IsEmpty()) << messages_;
  EXPECT_FALSE(std::filesystem::exists(Path("new"))) << "a check changes nothing";
}

TEST_F(SpecFilesTest, EachMissingFileIsOneProblem) {
  JobSpec spec;
  spec.plugin = Path("plugin.so");
  spec.data.data_path = {"1", Path("a"), "2", Path("b"), "3", Path("c")};
  spec.data.tokenizer_model = folder_.string();
  spec.checkpoint.save = Path("a.idx/checkpoints");
  spec.checkpoint.load = Path("nowhere");
  spec.checkpoint.exit_on_missing_checkpoint = true;
  spec.checkpoint.pretrained_checkpoint = Path("a.bin");
  EXPECT_THAT(Faults(spec),
              ::testing::ElementsAre("plugin", "data.data_path", "data.data_path", "data.data_path",
                                     "data.tokenizer_model", "checkpoint.save", "checkpoint.load",
                                     "checkpoint.pretrained_checkpoint"));
  EXPECT_THAT(messages_, HasSubstr("the file can't be read: No such file or directory"));
  EXPECT_THAT(messages_, HasSubstr("is a folder"));
  EXPECT_THAT(messages_, HasSubstr("it is not a folder"));
}

}  // namespace
}  // namespace muster
