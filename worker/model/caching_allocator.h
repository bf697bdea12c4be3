// Keeps the memory of freed CPU tensors for the next ones. A training step allocates and frees the
// same large activations every time; with the C library's allocator each of them is mapped, cleared
// and page-faulted anew, which costs a tenth to a quarter of a step. Large blocks are aligned to
// huge pages.
//
// What tensors ask for is counted (tensor_memory.h).
//
// Blocks are reused for requests of at least 4/5 of their size. What is held, used or not, stays
// below 5/4 of the most that was ever in use plus 256 MiB; the rest goes back to the system.
// Thread-safe.
#pragma once

#include <cstdint>

namespace muster {

// From now on CPU tensors of this process use it. Call once at the start of main; tensors made
// before stay valid.
void InstallCachingCpuAllocator();
// Counts, but keeps nothing: every tensor's memory comes from the C library and goes back to it.
void InstallCountingCpuAllocator();

struct CachingAllocatorStats {
  int64_t in_use_bytes = 0, unused_bytes = 0;  // of blocks of 64 KiB and more
  int64_t system_allocations = 0;              // how often the system was asked
};
CachingAllocatorStats GetCachingAllocatorStats();

}  // namespace muster
