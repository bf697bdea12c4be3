#include "common/runtime/life_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace muster {

struct LifeLock::Shared {
  pthread_mutex_t mutex;
};

namespace {

constexpr size_t kBytes = 4096;

absl::Status Problem(const char* what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

void* Map(int file) { return mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); }

int LockWithin(pthread_mutex_t* mutex, absl::Duration limit) {
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer knows neither pthread_mutex_clocklock nor a lock that was taken from the dead,
  // and would take the unlock for a fault.
  const timespec until = absl::ToTimespec(absl::Now() + limit);
  const int error = pthread_mutex_timedlock(mutex, &until);
  if (error == EOWNERDEAD) {
    __tsan_mutex_pre_lock(mutex, 0);
    __tsan_mutex_post_lock(mutex, 0, 0);
  }
  return error;
#else
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const timespec until = absl::ToTimespec(absl::DurationFromTimespec(now) + limit);
  return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until);
#endif
}

}  // namespace

absl::StatusOr<LifeLock> LifeLock::Create() {
  Fd file(memfd_create("muster-life", MFD_CLOEXEC));
  if (!file.open()) return Problem("memfd_create", errno);
  if (ftruncate(file.get(), kBytes) != 0) return Problem("ftruncate", errno);
  void* const memory = Map(file.get());
  if (memory == MAP_FAILED) return Problem("mmap", errno);
  auto* const shared = new (memory) Shared;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&shared->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  return LifeLock(std::move(file), shared);
}

LifeLock::LifeLock(Fd file, Shared* shared) : file_(std::move(file)), shared_(shared) {}

LifeLock::LifeLock(LifeLock&& other) noexcept
    : file_(std::move(other.file_)), shared_(std::exchange(other.shared_, nullptr)) {}

LifeLock& LifeLock::operator=(LifeLock&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(shared_, other.shared_);
  return *this;
}

LifeLock::~LifeLock() {
  // The mutex itself stays as it is: the holder may live on.
  if (shared_ != nullptr) munmap(shared_, kBytes);
}

std::string LifeLock::path() const { return absl::StrCat("/proc/", getpid(), "/fd/", file_.get()); }

LifeLock::Seen LifeLock::Await(absl::Duration limit) {
  switch (LockWithin(&shared_->mutex, limit)) {
    case 0:
      pthread_mutex_unlock(&shared_->mutex);
      return Seen::kNotHeld;
    case EOWNERDEAD:  // held by this thread now; left unrepaired, it stays "not recoverable"
      pthread_mutex_unlock(&shared_->mutex);
      return Seen::kDying;
    case ENOTRECOVERABLE:
      return Seen::kDying;
    default:
      return Seen::kAlive;
  }
}

absl::Status LifeLock::Hold(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  const auto failed = [&](int error) {
    return absl::FailedPreconditionError(absl::StrCat("life lock ", path, ": ", strerror(error)));
  };
  if (!file.open()) return failed(errno);
  void* const memory = Map(file.get());  // for as long as the process lives
  if (memory == MAP_FAILED) return failed(errno);
  const int error = pthread_mutex_trylock(&static_cast<Shared*>(memory)->mutex);
  return error == 0 ? absl::OkStatus() : failed(error);
}

}  // namespace muster
