// deploy/slurm/muster.sbatch with the real daemons; Slurm's own commands and the network's are
// stand-ins on PATH.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/cluster.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class SlurmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    mkdir((folder_ / "bin").c_str(), 0755);
    // Of srun's line only the options for the step differ from the command: one node, here.
    Script("srun", "while [[ $1 == --* ]]; do shift; done; exec \"$@\"");
    Script("ip", "echo '1.1.1.1 via 10.0.0.1 dev eth0 src 127.0.0.1 uid 0'");
    // A worker with CPUs and the stand-in for the trainer: of an option given twice the last
    // counts.
    Script("muster-worker",
           absl::StrCat("exec ", Binary("muster-worker"),
                        " \"$@\" --device cpu --slots 2 --trainer ", FAKE_TRAINER));
    for (const char* name : {"muster", "muster-coordinator"}) {
      Script(name, absl::StrCat("exec ", Binary(name), " \"$@\""));
    }
  }
  void Script(const std::string& name, const std::string& body) {
    const std::string path = folder_ / ("bin/" + name);
    PutFileText(path, "#!/usr/bin/env bash\n" + body + "\n");
    EXPECT_EQ(chmod(path.c_str(), 0755), 0);
  }
  std::unique_ptr<Process> Run(json spec) {
    PutFileText(folder_ / "spec.json", spec.dump());
    return std::make_unique<Process>(
        folder_.path(),
        std::vector<std::string>{"/bin/bash", MUSTER_SOURCE_DIR "/deploy/slurm/muster.sbatch",
                                 folder_ / "spec.json"},
        std::map<std::string, std::string>{
            {"SLURM_JOB_ID", "1"},
            {"MUSTER_BIN", folder_ / "bin"},
            {"MUSTER_STATE", folder_ / "state"},
            {"MUSTER_TEST_FOLDER", folder_.path()},
            {"PATH", absl::StrCat(folder_ / "bin", ":", getenv("PATH"))}});
  }
  bool NothingLeft() {
    return Eventually(
        [&] { return ProcessesNaming("MUSTER_TEST_FOLDER=" + folder_.path()).empty(); },
        absl::Seconds(20));
  }
  TempFolder folder_;
};

TEST_F(SlurmTest, TheJobRunsAndNothingIsLeft) {
  const auto script = Run(SmallSpec(2, 20));
  EXPECT_EQ(script->Wait(), 0) << script->Stderr() << script->Stdout();
  EXPECT_THAT(script->Stdout(), HasSubstr("COMPLETED at iteration 20"));
  struct stat token = {};
  ASSERT_EQ(stat((folder_ / "state/token").c_str(), &token), 0);
  EXPECT_EQ(token.st_mode & 0777, 0600u);
  EXPECT_TRUE(NothingLeft());
}

TEST_F(SlurmTest, TheWarningBeforeTheTimeLimitSavesACheckpoint) {
  json spec = SmallSpec(2, 100'000);
  spec["checkpoint"] = {{"save", folder_ / "checkpoints"}, {"save_interval", 1'000'000}};
  const auto script = Run(spec);
  ASSERT_TRUE(Eventually([&] {
    return script->Stdout().find("iteration 10/") != std::string::npos;
  })) << script->Stderr()
      << script->Stdout();
  script->Signal(SIGTERM);
  EXPECT_EQ(script->Wait(), 130) << script->Stderr() << script->Stdout();
  EXPECT_THAT(script->Stdout(), HasSubstr("/fake/checkpoint"));
  EXPECT_THAT(script->Stdout(), HasSubstr("CANCELLED"));
  EXPECT_TRUE(NothingLeft());
}

TEST_F(SlurmTest, ABadSpecEndsTheAllocation) {
  json spec = SmallSpec(2, 20);
  spec["model"]["num_layers"] = 0;
  const auto script = Run(spec);
  EXPECT_EQ(script->Wait(), 2) << script->Stdout();
  EXPECT_THAT(script->Stderr(), HasSubstr("model.num_layers"));
  EXPECT_TRUE(NothingLeft());
}

}  // namespace
}  // namespace muster
