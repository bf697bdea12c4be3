// Memory that outlives a process, by real processes.
#include "worker/agent/snapshot_memories.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/runtime/spawn.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

// Runs it as a trainer would be: another process, with nothing of this one's descriptors.
pid_t Start(const std::string& script) {
  pid_t pid = -1;
  EXPECT_EQ(
      Spawn({.program = "/bin/sh", .arguments = {"-c", script}, .output_path = "/dev/null"}, &pid),
      0);
  return pid;
}
int StatusOf(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

TEST(SnapshotMemoriesTest, WhatAKilledProcessWroteIsReadByItsSuccessor) {
  SnapshotMemories memories;
  const auto path = memories.PathOf(1);
  ASSERT_TRUE(path.ok()) << path.status();
  const int killed =
      StatusOf(Start(absl::StrCat("printf 'generation 7' >", *path, " && kill -KILL $$")));
  ASSERT_TRUE(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL);
  const int read = StatusOf(Start(absl::StrCat("test \"$(cat ", *path, ")\" = 'generation 7'")));
  EXPECT_TRUE(WIFEXITED(read) && WEXITSTATUS(read) == 0);
  EXPECT_EQ(*memories.PathOf(1), *path) << "the same again";
}

// As the trainer uses it: mapped and written without a system call; the kill comes in the middle.
TEST(SnapshotMemoriesTest, WhatAKilledProcessMappedIsReadByItsSuccessor) {
  SnapshotMemories memories;
  const auto path = memories.PathOf(1);
  ASSERT_TRUE(path.ok());
  constexpr size_t kSize = 1 << 20;
  const auto map = [&](int flags) {
    const int fd = open(path->c_str(), flags);
    EXPECT_GE(fd, 0);
    struct stat info = {};
    EXPECT_TRUE(fstat(fd, &info) == 0 && (info.st_size == kSize || ftruncate(fd, kSize) == 0));
    void* memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return static_cast<char*>(memory);
  };
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char* memory = map(O_RDWR);
    std::memset(memory, 'x', kSize);
    raise(SIGKILL);
  }
  ASSERT_TRUE(WIFSIGNALED(StatusOf(child)));
  char* memory = map(O_RDWR);
  EXPECT_EQ(memory[0], 'x');
  EXPECT_EQ(memory[kSize - 1], 'x');
  munmap(memory, kSize);
}

TEST(SnapshotMemoriesTest, EachIsItsOwnAndAFreedOneIsGone) {
  SnapshotMemories memories;
  const std::string first = *memories.PathOf(1), second = *memories.PathOf(2);
  EXPECT_NE(first, second);
  memories.Free(1);
  EXPECT_LT(open(first.c_str(), O_RDWR), 0);
  const int fd = open(second.c_str(), O_RDWR);
  EXPECT_GE(fd, 0);
  close(fd);
  memories.Free(1);  // again
}

}  // namespace
}  // namespace muster
