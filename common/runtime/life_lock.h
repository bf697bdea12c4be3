// How one process learns that another is dying before the kernel has taken its memory back. A pidfd
// and the end of a socket tell it only after that: tens of milliseconds for a small trainer, the
// better part of a second for gigabytes or a CUDA context. A robust mutex in shared memory is
// marked as soon as the thread that holds it ends (futex(2), robust lists).
//
//   watcher: Create(), gives path() to the other process, then Await() again and again
//   holder:  Hold(path) on the thread that lives as long as the process
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/runtime/fd.h"

namespace muster {

class LifeLock {
 public:
  // UNAVAILABLE: no memory or descriptors.
  static absl::StatusOr<LifeLock> Create();
  LifeLock(LifeLock&& other) noexcept;
  LifeLock& operator=(LifeLock&& other) noexcept;
  ~LifeLock();

  // In /proc, for a process of the same user, while this object lives.
  std::string path() const;

  enum class Seen {
    kAlive,    // the limit has passed, and the holder lives
    kNotHeld,  // nobody holds it, or ever has
    kDying,    // its holder has ended: from now on and for good
  };
  Seen Await(absl::Duration limit);

  // The calling thread holds it until it ends. FAILED_PRECONDITION: there is no such lock, or it is
  // held.
  static absl::Status Hold(const std::string& path);

 private:
  struct Shared;
  LifeLock(Fd file, Shared* shared);

  Fd file_;
  Shared* shared_ = nullptr;
};

}  // namespace muster
