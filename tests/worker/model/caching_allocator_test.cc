// The CPU memory of a training step is asked of the system once.

#include "worker/model/caching_allocator.h"

#include <thread>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "test_support.h"
#include "worker/model/tensor_memory.h"

namespace muster {
namespace {

// Each gtest case is a process of its own under ctest; run together they share the allocator.
TEST(CachingAllocatorTest, AFreedBlockServesTheNextTensorOfItsSize) {
  InstallCachingCpuAllocator();
  const void* first = at::empty({1 << 20}).data_ptr();  // 4 MiB, freed at once
  const int64_t asked = GetCachingAllocatorStats().system_allocations;
  EXPECT_EQ(at::empty({1 << 20}).data_ptr(), first);
  EXPECT_EQ(GetCachingAllocatorStats().system_allocations, asked);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
}

TEST(CachingAllocatorTest, TensorsInUseNeverShareMemory) {
  InstallCachingCpuAllocator();
  std::vector<at::Tensor> live;
  for (int round = 0; round < 200; ++round) {
    live.push_back(at::full({(round * 7919) % 60000 + 1}, round, at::kFloat));
    if (live.size() > 20) live.erase(live.begin() + round % 20);
    for (const at::Tensor& tensor : live) {
      ASSERT_EQ(tensor[0].item<float>(), tensor[-1].item<float>());
    }
  }
}

TEST(CachingAllocatorTest, UnusedMemoryIsBounded) {
  InstallCachingCpuAllocator();
  // Growing sizes: no freed block is large enough for the next tensor.
  for (int64_t mib = 8; mib < 200; mib += mib / 3) (void)at::empty({mib << 20}, at::kByte);
  const CachingAllocatorStats stats = GetCachingAllocatorStats();
  EXPECT_LE(stats.in_use_bytes + stats.unused_bytes, (200 + 50 + 256 + 4LL) << 20);
}

TEST(CachingAllocatorTest, ATrainingStepAsksTheSystemForNothingMore) {
  InstallCachingCpuAllocator();
  TransformerConfig config = TinyConfig();
  config.hidden_size = 128;
  config.ffn_hidden_size = 512;
  config.kv_channels = 32;
  auto model = MakeModel(config, at::kFloat);
  AttachMainGrads(model->parameters(), at::kFloat);
  const Batch batch = RandomBatch(config, 16, 16, 5);
  const auto step = [&] { model->Forward(batch, {}).mean().backward(); };
  step();
  step();
  const int64_t asked = GetCachingAllocatorStats().system_allocations;
  EXPECT_GT(asked, 0);
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(GetCachingAllocatorStats().system_allocations, asked);
}

TEST(CachingAllocatorTest, EmptyAndTinyTensorsWork) {
  InstallCachingCpuAllocator();
  EXPECT_EQ(at::empty({0}).numel(), 0);
  EXPECT_EQ(at::ones({3}).sum().item<float>(), 3);
}

// Every thread counts for itself; the process's counter sees the rest.
TEST(CachingAllocatorTest, LiveBytesAndTheirPeakAreCounted) {
  for (const bool caches : {true, false}) {
    SCOPED_TRACE(caches);
    caches ? InstallCachingCpuAllocator() : InstallCountingCpuAllocator();
    MemoryCounter* const counter = new MemoryCounter;  // tensors point to it
    at::Tensor kept;
    std::thread rank([&] {
      SetCpuMemoryCounter(counter);
      kept = at::empty({1000}, at::kFloat);
      { const at::Tensor large = at::empty({1 << 20}, at::kFloat); }
      const at::Tensor small = at::empty({3}, at::kByte);
      EXPECT_EQ(TensorMemoryOn(at::kCPU).current_bytes, 4003);
    });
    rank.join();
    const int64_t others = TensorMemoryOn(at::kCPU).current_bytes;
    EXPECT_EQ(counter->Read().current_bytes, 4000);
    EXPECT_EQ(counter->Read().peak_bytes, 4000 + (4 << 20));
    kept = at::Tensor();  // by another thread than the one that made it
    EXPECT_EQ(counter->Read().current_bytes, 0);
    EXPECT_EQ(TensorMemoryOn(at::kCPU).current_bytes, others);
  }
}

}  // namespace
}  // namespace muster
