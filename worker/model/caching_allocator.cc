#include "worker/model/caching_allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <map>
#include <new>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "absl/base/thread_annotations.h"
#include "common/runtime/mutex.h"
#include "worker/model/tensor_memory.h"

namespace muster {
namespace {

constexpr size_t kSmall = 64 << 10;  // below: the C library's allocator, which caches these itself
constexpr size_t kHugePage = 2 << 20;
constexpr size_t kSlack = 256 << 20;

constexpr size_t kHeader = 64;  // in front of the data; keeps it aligned for vector loads

// What a block says of itself, kHeader bytes before its data: one deleter serves all sizes, as
// raw_allocate's users (oneDNN's scratch memory) need it.
struct Header {
  size_t block_bytes;  // with the header; 0: small, not cached
  int64_t data_bytes;  // as asked for
  MemoryCounter* counter;
};
static_assert(sizeof(Header) <= kHeader);

Header* HeaderOf(void* data) {
  return reinterpret_cast<Header*>(static_cast<char*>(data) - kHeader);
}

size_t RoundUp(size_t bytes) {
  const size_t unit = bytes >= kHugePage ? kHugePage : kSmall;
  return (bytes + unit - 1) / unit * unit;
}

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &Release, c10::Device(c10::kCPU)};
    void* const data = caches_ && bytes >= kSmall ? Take(bytes) : NewBlock(bytes + kHeader, 64, 0);
    Header* const header = HeaderOf(data);
    header->data_bytes = static_cast<int64_t>(bytes);
    header->counter = &CpuMemoryCounter();
    header->counter->Add(header->data_bytes);
    return {data, data, &Release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  CachingAllocatorStats stats() {
    MutexLock lock(&mu_);
    return {static_cast<int64_t>(in_use_), static_cast<int64_t>(unused_), system_allocations_};
  }
  static CachingAllocator& Get() {
    static CachingAllocator* const allocator = new CachingAllocator;  // outlives every tensor
    return *allocator;
  }
  void set_caches(bool caches) { caches_ = caches; }

 private:
  static void* NewBlock(size_t bytes, size_t alignment, size_t cached_bytes) {
    void* block = nullptr;
    if (::posix_memalign(&block, alignment, bytes) != 0) throw std::bad_alloc();
    if (alignment == kHugePage) ::madvise(block, bytes, MADV_HUGEPAGE);  // only a hint
    new (block) Header{.block_bytes = cached_bytes, .data_bytes = 0, .counter = nullptr};
    return static_cast<char*>(block) + kHeader;
  }

  void* Take(size_t bytes) {
    const size_t size = RoundUp(bytes + kHeader);
    {
      MutexLock lock(&mu_);
      const auto found = free_.lower_bound(size);
      if (found != free_.end() && found->first <= size + size / 4) {
        void* data = found->second;
        unused_ -= found->first;
        CountInUse(found->first);
        free_.erase(found);
        return data;
      }
      ++system_allocations_;
      CountInUse(size);
    }
    return NewBlock(size, size >= kHugePage ? kHugePage : 64, size);
  }

  void CountInUse(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
  }

  static void Release(void* data) {
    if (data == nullptr) return;
    HeaderOf(data)->counter->Subtract(HeaderOf(data)->data_bytes);
    if (HeaderOf(data)->block_bytes == 0) {
      std::free(HeaderOf(data));
      return;
    }
    Get().Return(data);
  }

  void Return(void* data) {
    const size_t size = HeaderOf(data)->block_bytes;
    MutexLock lock(&mu_);
    in_use_ -= size;
    unused_ += size;
    free_.emplace(size, data);
    while (in_use_ + unused_ > peak_ + peak_ / 4 + kSlack && !free_.empty()) {
      const auto largest = std::prev(free_.end());
      unused_ -= largest->first;
      std::free(HeaderOf(largest->second));
      free_.erase(largest);
    }
  }

  std::atomic<bool> caches_ = true;
  Mutex mu_;
  std::multimap<size_t, void*> free_ ABSL_GUARDED_BY(mu_);  // block size -> data
  size_t in_use_ ABSL_GUARDED_BY(mu_) = 0, unused_ ABSL_GUARDED_BY(mu_) = 0;
  size_t peak_ ABSL_GUARDED_BY(mu_) = 0;  // of in_use_
  int64_t system_allocations_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

void InstallCachingCpuAllocator() {
  CachingAllocator::Get().set_caches(true);
  c10::SetCPUAllocator(&CachingAllocator::Get());
}

void InstallCountingCpuAllocator() {
  CachingAllocator::Get().set_caches(false);
  c10::SetCPUAllocator(&CachingAllocator::Get());
}

CachingAllocatorStats GetCachingAllocatorStats() { return CachingAllocator::Get().stats(); }

}  // namespace muster
