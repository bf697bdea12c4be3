// Shared by the checkpoint tests: a temporary root, ranks as threads, small tensors.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/checkpoint/checkpoint.h"
#include "worker/comm/self_communicator.h"
#include "worker/comm/thread_communicator.h"

namespace muster {

class TestRoot {
 public:
  TestRoot() {
    std::string name = ::testing::TempDir() + "/muster_ckpt_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TestRoot() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Runs `rank_main` on `size` ranks, each a thread.
inline void RunRanks(int size, const std::function<void(Communicator& world)>& rank_main,
                     const ThreadWorldOptions& options = {}) {
  std::vector<CommunicatorPtr> ranks = MakeThreadWorld(size, options);
  std::vector<std::thread> threads;
  for (CommunicatorPtr& rank : ranks) threads.emplace_back([&] { rank_main(*rank); });
  for (std::thread& thread : threads) thread.join();
}

inline CheckpointState StateOf(int64_t iteration, const at::Tensor& weight) {
  return {.iteration = iteration,
          .tensors = {{.name = "w", .data = weight}},
          .common_json = "{\"consumed\": " + std::to_string(iteration) + "}",
          .rank_json = "{\"rng\": 7}"};
}

}  // namespace muster
