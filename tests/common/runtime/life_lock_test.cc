#include "common/runtime/life_lock.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "common/runtime/fd.h"

namespace muster {
namespace {

// A process that holds the lock, then writes a byte and waits for its end.
struct Holder {
  pid_t pid = -1;
  Fd ready;
  explicit Holder(const std::string& path, size_t memory = 0) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
      if (memory > 0) {
        void* bytes = mmap(nullptr, memory, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (bytes == MAP_FAILED) _exit(4);
      }
      const bool held = LifeLock::Hold(path).ok();
      (void)!write(ends[1], held ? "1" : "0", 1);
      for (;;) pause();
    }
    close(ends[1]);
    ready = Fd(ends[0]);
  }
  bool Held() const {
    char answer = 0;
    return read(ready.get(), &answer, 1) == 1 && answer == '1';
  }
  ~Holder() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
};

TEST(LifeLockTest, TellsOfADeathAndGoesOnTellingIt) {
  auto lock = LifeLock::Create();
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(lock->Await(absl::ZeroDuration()), LifeLock::Seen::kNotHeld);
  Holder holder(lock->path());
  ASSERT_TRUE(holder.Held());
  EXPECT_EQ(lock->Await(absl::Milliseconds(5)), LifeLock::Seen::kAlive);
  EXPECT_FALSE(LifeLock::Hold(lock->path()).ok()) << "two holders";
  kill(holder.pid, SIGKILL);
  EXPECT_EQ(lock->Await(absl::Seconds(60)), LifeLock::Seen::kDying);
  EXPECT_EQ(lock->Await(absl::ZeroDuration()), LifeLock::Seen::kDying);
}

// Whether the notice came while the process was there, its memory not yet given back.
bool NoticeComesFirst() {
  auto lock = LifeLock::Create();
  EXPECT_TRUE(lock.ok()) << lock.status();
  Holder holder(lock->path(), size_t{256} << 20);
  EXPECT_TRUE(holder.Held());
  const Fd pidfd(static_cast<int>(syscall(SYS_pidfd_open, holder.pid, 0)));
  kill(holder.pid, SIGKILL);
  EXPECT_EQ(lock->Await(absl::Seconds(60)), LifeLock::Seen::kDying);
  pollfd polled = {pidfd.get(), POLLIN, 0};
  const bool first = poll(&polled, 1, 0) == 0;
  EXPECT_EQ(poll(&polled, 1, 60'000), 1);
  return first;
}

// What it is for. On a busy machine this process may be scheduled late, so once of ten is enough:
// a notice that waits for the end never comes first.
TEST(LifeLockTest, TellsItBeforeTheProcessHasEnded) {
  bool first = false;
  for (int turn = 0; turn < 10 && !first; ++turn) first = NoticeComesFirst();
  EXPECT_TRUE(first);
}

TEST(LifeLockTest, SaysWhichLockIsNotThere) {
  const absl::Status status = LifeLock::Hold("/nonexistent/lock");
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_NE(std::string(status.message()).find("/nonexistent/lock"), std::string::npos);
}

}  // namespace
}  // namespace muster
