// Runs one function a rank, each on its own thread, over a world of threads.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "worker/comm/thread_communicator.h"

namespace muster {

// A rank that fails aborts the world, so that the others end too.
inline void RunRanks(int size, const std::function<absl::Status(CommunicatorPtr world)>& fn) {
  std::vector<CommunicatorPtr> worlds = MakeThreadWorld(size);
  std::vector<absl::Status> results(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        results[rank] = fn(worlds[rank]);
      } catch (const std::exception& e) {
        results[rank] = absl::InternalError(e.what());
      }
      if (!results[rank].ok()) worlds[rank]->Abort(std::string(results[rank].message()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < size; ++rank)
    EXPECT_TRUE(results[rank].ok()) << "rank " << rank << ": " << results[rank];
}

}  // namespace muster
