// The memory that an agent holds for a trainer.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/runtime/fd.h"
#include "worker/snapshot/snapshot_memory.h"

namespace muster {

class MemoryFile {
 public:
  explicit MemoryFile(unsigned flags = 0) : fd_(memfd_create("snapshots", MFD_CLOEXEC | flags)) {}
  std::string path() const { return absl::StrCat("/proc/", getpid(), "/fd/", fd_.get()); }
  int fd() const { return fd_.get(); }
  int64_t memory() const {
    struct stat status = {};
    fstat(fd_.get(), &status);
    return status.st_blocks * 512;
  }
  std::unique_ptr<SnapshotMemory> Open(const std::string& job = "job-1") const {
    auto memory = SnapshotMemory::Open(path(), job);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  char ByteAt(int64_t at) const {
    char byte = 0;
    EXPECT_EQ(pread(fd_.get(), &byte, 1, at), 1);
    return byte;
  }
  void SetByte(int64_t at, char byte) const { EXPECT_EQ(pwrite(fd_.get(), &byte, 1, at), 1); }

 private:
  Fd fd_;
};

}  // namespace muster
