// What recovery stands on is damaged: the disk is full, snapshots have flipped bits.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/integration/chaos/unbroken_run.h"

namespace muster {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;

// Flips a bit in each of the files in memory that the process holds, at every `stride` bytes; how
// many were flipped.
int FlipBitsOfMemfds(pid_t pid, int64_t stride) {
  int flipped = 0;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (error || target.rfind("/memfd:", 0) != 0) continue;
    const int fd = open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) continue;
    struct stat info = {};
    fstat(fd, &info);
    for (int64_t at = stride / 2; at < info.st_size; at += stride) {
      char byte = 0;
      if (pread(fd, &byte, 1, at) != 1) break;
      byte = static_cast<char>(byte ^ 0x10);
      if (pwrite(fd, &byte, 1, at) != 1) break;
      ++flipped;
    }
    close(fd);
  }
  return flipped;
}

class DamageTest : public ::testing::Test {
 protected:
  // Pipeline stages: nobody else has a lost stage's state.
  DamageTest()
      : layout_{"pp2", 2, {{"pipeline_model_parallel_size", 2}}, {1, 1}},
        chaos_(layout_.slots_of_node),
        spec_(ChaosSpec(layout_, 100)) {
    spec_["recovery"]["snapshot_interval"] = 5;
    unbroken_ = UnbrokenOf(chaos_.cluster(), spec_);
    MakeUnruly(chaos_.cluster().folder().path(), &spec_);
    SetPace(chaos_.cluster().folder().path(), kBriskPace);
  }
  void StopAll(const std::vector<pid_t>& trainers) {
    for (const pid_t pid : trainers) kill(pid, SIGSTOP);
  }
  const ChaosLayout layout_;
  ChaosCluster chaos_;
  json spec_;
  UnbrokenRun unbroken_;
};

TEST_F(DamageTest, SnapshotsWithFlippedBitsAreNotUsed) {
  spec_["checkpoint"] = {{"save", chaos_.cluster().folder() / "checkpoints"},
                         {"save_interval", 20}};
  const std::string job = chaos_.cluster().Submit(spec_);
  ASSERT_TRUE(chaos_.cluster().WaitForIteration(job, 45)) << Report(chaos_, job);
  const std::vector<pid_t> trainers = chaos_.Trainers();
  StopAll(trainers);  // nothing is written over what is damaged now
  EXPECT_GT(FlipBitsOfMemfds(chaos_.agent(1).pid(), 2048), 0) << "no snapshot is there";
  for (const pid_t pid : trainers) kill(pid, SIGKILL);
  ExpectEndsAsUnbroken(chaos_, job, unbroken_);
  const std::string events = chaos_.cluster().Muster({"events", job}).out;
  EXPECT_THAT(events, HasSubstr("checkpoint"));
}

TEST_F(DamageTest, FullDiskFailsTheSaveAndTrainingGoesOnThroughAKill) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can mount a small disk";
  const std::string disk = chaos_.cluster().folder() / "small-disk";
  mkdir(disk.c_str(), 0755);
  if (mount("none", disk.c_str(), "tmpfs", 0, "size=8m") != 0) {
    GTEST_SKIP() << "this container may not mount a disk";
  }
  spec_["checkpoint"] = {{"save", disk + "/checkpoints"}, {"save_interval", 20}};
  const std::string job = chaos_.cluster().Submit(spec_);
  ASSERT_TRUE(chaos_.cluster().WaitForIteration(job, 25)) << Report(chaos_, job);
  {
    std::ofstream filler(disk + "/filler");
    const std::string block(4096, 'x');
    while (filler.write(block.data(), 4096).flush()) {
    }
  }
  EXPECT_TRUE(Eventually([&] {
    return chaos_.cluster().Muster({"events", job}).out.find("checkpoint_failed") !=
           std::string::npos;
  })) << Report(chaos_, job);
  const std::vector<pid_t> trainers = chaos_.Trainers();
  if (!trainers.empty()) kill(trainers.back(), SIGKILL);
  ExpectEndsAsUnbroken(chaos_, job, unbroken_);
  umount2(disk.c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace muster
