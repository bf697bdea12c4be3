// A trainer that says "ready", writes "last words", and waits: with so much memory (argv[1], MiB)
// that its end takes the kernel a while.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/runtime/life_lock.h"

int main(int argc, char** argv) {
  if (argc < 6) return 2;  // MIB --control-fd 3 --life-lock PATH
  const size_t bytes = std::strtoul(argv[1], nullptr, 10) << 20;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED || !muster::LifeLock::Hold(argv[5]).ok()) return 3;
  (void)!write(2, "last words", 10);
  (void)!write(3, "ready\n", 6);
  char order = 0;
  (void)!read(3, &order, 1);
  return 7;
}
